// Barriers, fences, warp shuffles and votes.
#pragma once
#include <string.h>

#include "interface.h"

// ---- the block ---------------------------------------------------------------------------------
static inline void __syncthreads(CUEMU_SITE) { cuemu_barrier(0, file, line); }
static inline int __syncthreads_count(int predicate, CUEMU_SITE) {
  return static_cast<int>(cuemu_barrier(predicate != 0, file, line));
}
static inline int __syncthreads_or(int predicate, CUEMU_SITE) {
  return cuemu_barrier(predicate != 0, file, line) != 0;
}
static inline int __syncthreads_and(int predicate, CUEMU_SITE) {
  return cuemu_barrier(predicate == 0, file, line) == 0;
}

static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// ---- the warp ----------------------------------------------------------------------------------
static inline unsigned cuemu_lane() { return cuemu_linear_thread() & 31; }

static inline void __syncwarp(unsigned mask = 0xffffffffu, CUEMU_SITE) {
  cuemu_warp(cuemu::kSyncWarp, mask, 0, 0, file, line);
}
static inline unsigned __activemask(CUEMU_SITE) { return cuemu_active_mask(file, line); }
static inline unsigned __ballot_sync(unsigned mask, int predicate, CUEMU_SITE) {
  return static_cast<unsigned>(
      cuemu_warp(cuemu::kBallot, mask, predicate != 0, 0, file, line));
}
static inline int __any_sync(unsigned mask, int predicate, CUEMU_SITE) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, CUEMU_SITE) {
  return __ballot_sync(mask, !predicate, file, line) == 0;
}

namespace cuemu {

template <class T>
inline T shuffle(unsigned mask, T value, int source, const char* file, int line) {
  static_assert(sizeof(T) <= 8, "a warp shuffle moves at most 8 bytes: shuffle the parts");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = cuemu_warp(kShuffle, mask, bits, source, file, line);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cuemu

// A warp may be cut into segments of `width` lanes; a source outside the own segment gives the
// caller its own value back.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUEMU_SITE) {
  const int lane = cuemu_lane(), first = lane & ~(width - 1);
  return cuemu::shuffle(mask, value, first + (source & (width - 1)), file, line);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUEMU_SITE) {
  const int lane = cuemu_lane(), first = lane & ~(width - 1), source = lane - int(delta);
  return cuemu::shuffle(mask, value, source >= first ? source : lane, file, line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUEMU_SITE) {
  const int lane = cuemu_lane(), first = lane & ~(width - 1), source = lane + int(delta);
  return cuemu::shuffle(mask, value, source < first + width ? source : lane, file, line);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, CUEMU_SITE) {
  const int lane = cuemu_lane(), first = lane & ~(width - 1), source = lane ^ lane_mask;
  return cuemu::shuffle(mask, value, source < first + width ? source : lane, file, line);
}

namespace cuemu {

// Folds the values of the mask's lanes in lane order.
template <class T, class Operation>
inline T warp_fold(unsigned mask, T value, Operation operation, const char* file, int line) {
  T result = shuffle(mask, value, __builtin_ctz(mask), file, line);
  for (unsigned rest = mask & (mask - 1); rest; rest &= rest - 1)
    result = operation(result, shuffle(mask, value, __builtin_ctz(rest), file, line));
  return result;
}

}  // namespace cuemu

template <class T>
inline unsigned __match_any_sync(unsigned mask, T value, CUEMU_SITE) {
  unsigned same = 0;
  for (unsigned rest = mask; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (cuemu::shuffle(mask, value, lane, file, line) == value) same |= 1u << lane;
  }
  return same;
}
template <class T>
inline unsigned __match_all_sync(unsigned mask, T value, int* predicate, CUEMU_SITE) {
  const T first = cuemu::shuffle(mask, value, __builtin_ctz(mask), file, line);
  *predicate = __all_sync(mask, first == value, file, line);
  return *predicate ? mask : 0;
}

#define CUEMU_REDUCE(NAME, EXPRESSION)                                                         \
  template <class T>                                                                           \
  inline T NAME(unsigned mask, T value, CUEMU_SITE) {                                          \
    return cuemu::warp_fold(mask, value, [](T a, T b) -> T { return EXPRESSION; }, file, line); \
  }
CUEMU_REDUCE(__reduce_add_sync, a + b)
CUEMU_REDUCE(__reduce_min_sync, b < a ? b : a)
CUEMU_REDUCE(__reduce_max_sync, a < b ? b : a)
CUEMU_REDUCE(__reduce_and_sync, a & b)
CUEMU_REDUCE(__reduce_or_sync, a | b)
CUEMU_REDUCE(__reduce_xor_sync, a ^ b)
#undef CUEMU_REDUCE

// ---- the rest ----------------------------------------------------------------------------------
// Lets the other threads of the block run, so that a loop that sleeps until they have done
// something ends.
static inline void __nanosleep(unsigned) { cuemu_yield(); }
static inline void __trap(CUEMU_SITE) { cuemu_fail(719, "__trap() was called", file, line); }
