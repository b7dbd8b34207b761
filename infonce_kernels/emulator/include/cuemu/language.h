// CUDA's additions to C++: qualifiers, built-in variables, launches and shared memory.
//
// The rewriter (rewriter.py) turns the three things that a C++ compiler cannot parse into calls of
// the functions below; the rest are macros.
#pragma once
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include <type_traits>

#include "interface.h"

#define __global__ __attribute__((noinline))  // so that an error can name the line in it
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __forceinline__ __attribute__((always_inline))  // often written beside `inline`
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx (::cuemu::unpack(::cuemu_thread_index()))
#define blockIdx (::cuemu::unpack(::cuemu_block_index()))
#define blockDim (::dim3(::cuemu::unpack(::cuemu_block_dim())))
#define gridDim (::dim3(::cuemu::unpack(::cuemu_grid_dim())))
static constexpr int warpSize = 32;

namespace cuemu {

// cudaFuncSetAttribute lets a kernel have more than 48 KiB of dynamic shared memory. The limit is
// kept for the whole module, not for each kernel of it.
inline size_t dynamic_shared_limit = 48 * 1024;

// k<T><<<grid, block, bytes, stream>>>(args) becomes
//   launch(LaunchConfig(CUEMU_STRING(k<T>), file, line, grid, block, bytes, stream),
//          [&](auto... a) { k<T>(a...); }, args)
// The arguments are copied once, as CUDA copies them, and a kernel template still deduces its
// parameters from them.
#define CUEMU_STRING(...) #__VA_ARGS__
template <class Kernel, class... Arguments>
inline void launch(LaunchConfig config, Kernel kernel, Arguments... arguments) {
  config.dynamic_limit = dynamic_shared_limit;
  auto body = [&] { kernel(arguments...); };
  cuemu_launch(&config, [](void* p) { (*static_cast<decltype(body)*>(p))(); }, &body);
}

// The rewriter puts it first in every launcher. sigsetjmp returns a second time after a fault.
#define CUEMU_GUARD_LAUNCHER                              \
  ::cuemu::LauncherGuard cuemu_guard(__FILE__, __LINE__); \
  if (sigsetjmp(cuemu_guard.point, 1)) return cuemu_guard.failed();

// `__shared__ T x[N]` becomes `struct cuemu_x; auto& x = shared<T[N], cuemu_x>("x")`. The local
// struct makes one variable of each declaration, and one for each instantiation of a template. An
// alignment of 0 is that of the type.
template <class T, class Site>
inline T& shared(const char* name, size_t alignment, const char* file, int line) {
  constexpr size_t elements =
      std::is_array_v<T> ? sizeof(T) / sizeof(std::remove_all_extents_t<T>) : 0;
  static SharedVariable variable{
      name, sizeof(T), alignment ? alignment : alignof(T), elements, file, line, -1};
  return *static_cast<T*>(cuemu_static_shared(&variable, file, line));
}

template <class T>
inline T* dynamic_shared() {
  return static_cast<T*>(cuemu_dynamic_shared());
}

}  // namespace cuemu

// Inside this library the names below stand for the C library's. A failed device assert becomes an
// error instead of ending Python, and device printf appears in the order of the blocks.
extern "C" {
__attribute__((weak)) void __assert_fail(
    const char* expression, const char* file, unsigned int line, const char*) noexcept {
  char text[512];
  snprintf(text, sizeof text, "device-side assert failed: %s", expression);
  cuemu_fail(710, text, file, static_cast<int>(line));
}

__attribute__((weak)) int printf(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int count = cuemu_printf(format, arguments);
  va_end(arguments);
  return count;
}
}
