// Atomic functions. Each returns the old value.
//
// A block's first atomic on global memory waits until the blocks before it have finished (the
// runtime does that in cuemu_before_atomic), so that a floating-point sum is the same in every run.
#pragma once
#include "interface.h"

namespace cuemu {

template <class T>
struct Identity {  // keeps a parameter out of template argument deduction
  using type = T;
};

template <class T, class Update>
inline T atomic_update(T* address, Update update) {
  cuemu_before_atomic(address);
  T old, desired;
  __atomic_load(address, &old, __ATOMIC_SEQ_CST);
  do {
    desired = update(old);
  } while (!__atomic_compare_exchange(address, &old, &desired, false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST));
  return old;
}

}  // namespace cuemu

// The _block and _system variants differ in scope only: here every atomic has the widest.
#define CUEMU_ATOMIC_SCOPE(NAME, SUFFIX, EXPRESSION)                               \
  template <class T>                                                               \
  inline T NAME##SUFFIX(T* address, typename cuemu::Identity<T>::type value) {     \
    return cuemu::atomic_update(address, [&](T old) -> T { return EXPRESSION; });  \
  }
#define CUEMU_ATOMIC(NAME, EXPRESSION)          \
  CUEMU_ATOMIC_SCOPE(NAME, , EXPRESSION)        \
  CUEMU_ATOMIC_SCOPE(NAME, _block, EXPRESSION)  \
  CUEMU_ATOMIC_SCOPE(NAME, _system, EXPRESSION)
CUEMU_ATOMIC(atomicAdd, old + value)
CUEMU_ATOMIC(atomicSub, old - value)
CUEMU_ATOMIC(atomicExch, (static_cast<void>(old), value))
CUEMU_ATOMIC(atomicMin, value < old ? value : old)
CUEMU_ATOMIC(atomicMax, old < value ? value : old)
CUEMU_ATOMIC(atomicAnd, old & value)
CUEMU_ATOMIC(atomicOr, old | value)
CUEMU_ATOMIC(atomicXor, old ^ value)
CUEMU_ATOMIC(atomicInc, old >= value ? T(0) : T(old + 1))
CUEMU_ATOMIC(atomicDec, (old == 0 || old > value) ? value : T(old - 1))
#undef CUEMU_ATOMIC
#undef CUEMU_ATOMIC_SCOPE

template <class T>
inline T atomicCAS(T* address, typename cuemu::Identity<T>::type compare,
                   typename cuemu::Identity<T>::type value) {
  cuemu_before_atomic(address);
  T expected = compare;
  __atomic_compare_exchange(address, &expected, &value, false, __ATOMIC_SEQ_CST,
                            __ATOMIC_SEQ_CST);
  return expected;
}
template <class T>
inline T atomicCAS_block(T* address, typename cuemu::Identity<T>::type compare,
                         typename cuemu::Identity<T>::type value) {
  return atomicCAS(address, compare, value);
}
template <class T>
inline T atomicCAS_system(T* address, typename cuemu::Identity<T>::type compare,
                          typename cuemu::Identity<T>::type value) {
  return atomicCAS(address, compare, value);
}
