// The border between a kernel module and the emulator's runtime library.
//
// A kernel module is one rewritten .cu file, compiled to a small shared library. Everything in
// include/ is compiled into it; the functions declared here live in the one runtime library of the
// process (src/), which owns the fibers, the worker threads and the last error of each thread.
#pragma once
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#include "vector_types.h"

// Where a device function was called: default arguments are evaluated at the call, so the learner's
// file and line arrive without any macro around the function.
#define CUEMU_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

struct CUstream_st;
typedef CUstream_st* cudaStream_t;

namespace cuemu {

// What stands between <<< and >>>, and where.
struct LaunchConfig {
  const char* kernel;
  const char* file;
  int line;
  dim3 grid, block;
  size_t dynamic_shared;     // bytes
  size_t dynamic_limit = 0;  // bytes; raised by cudaFuncSetAttribute, filled in by cuemu::launch

  LaunchConfig(const char* kernel, const char* file, int line, dim3 grid, dim3 block,
               size_t dynamic_shared = 0, cudaStream_t = nullptr)
      : kernel(kernel), file(file), line(line), grid(grid), block(block),
        dynamic_shared(dynamic_shared) {}
};

// One `__shared__` variable of the text. `id` is given by the runtime at the first use.
struct SharedVariable {
  const char* name;
  size_t size, alignment;  // bytes
  size_t elements;         // of an array; 0 if it is none
  const char* file;        // of the declaration
  int line;
  int id;
};

// Lives as long as a launcher runs. Where the launcher itself (host code) faults, or uses what exists
// in kernels only, it returns an error from here: the signal handler jumps back to `point`.
struct LauncherGuard;

enum WarpOperation { kShuffle, kBallot, kSyncWarp };

// CUDA's limits leave 32 bits for x and 16 for y and z: a position fits in one register.
inline uint64_t pack(uint3 v) { return v.x | uint64_t(v.y) << 32 | uint64_t(v.z) << 48; }
inline uint3 unpack(uint64_t packed) {
  return {unsigned(packed), unsigned(packed >> 32) & 0xffff, unsigned(packed >> 48)};
}

}  // namespace cuemu

extern "C" {
int cuemu_launch(const cuemu::LaunchConfig* config, void (*body)(void*), void* arguments);

// The built-in variables, packed (see cuemu::pack). They never change while a CUDA thread lives, and
// `const` tells the compiler so: it may keep threadIdx.x in a register across stores and barriers,
// as nvcc does.
uint64_t cuemu_thread_index() __attribute__((const));
uint64_t cuemu_block_index() __attribute__((const));
uint64_t cuemu_block_dim() __attribute__((const));
uint64_t cuemu_grid_dim() __attribute__((const));
unsigned cuemu_linear_thread() __attribute__((const));

// Returns how many arriving threads brought a non-zero predicate.
unsigned cuemu_barrier(int predicate, const char* file, int line);
// Shuffle: `value` of lane `source`. Ballot: the bits of lanes with value != 0.
uint64_t cuemu_warp(int operation, unsigned mask, uint64_t value, int source, const char* file,
                    int line);
unsigned cuemu_active_mask(const char* file, int line);
void cuemu_yield();

void* cuemu_static_shared(cuemu::SharedVariable* variable, const char* file, int line);
void* cuemu_dynamic_shared() __attribute__((const));
void cuemu_before_atomic(const void* address);
int cuemu_printf(const char* format, __builtin_va_list arguments);

// Ends the launch with an error at this thread; does not return.
void cuemu_fail(int code, const char* text, const char* file, int line) __attribute__((noreturn));

void cuemu_guard_enter(cuemu::LauncherGuard* guard);
void cuemu_guard_leave(cuemu::LauncherGuard* guard);
int cuemu_guard_failed(cuemu::LauncherGuard* guard);  // keeps the error, returns its code

// The linker's: where this module's machine code lies.
extern char __ehdr_start __attribute__((visibility("hidden")));
extern char etext __attribute__((visibility("hidden")));

// Errors of the calling OS thread, as cudaGetLastError sees them.
int cuemu_last_error(int clear);
int cuemu_host_error(int code, const char* text, const char* file, int line);
}

struct cuemu::LauncherGuard {
  sigjmp_buf point;
  const char* file;
  int line;
  const char *code_begin, *code_end;  // of the module
  LauncherGuard* outer;
  void* signals;

  LauncherGuard(const char* file, int line)
      : file(file), line(line), code_begin(&__ehdr_start), code_end(&etext) {
    cuemu_guard_enter(this);
  }
  ~LauncherGuard() { cuemu_guard_leave(this); }
  LauncherGuard(const LauncherGuard&) = delete;

  struct Code {  // an int or a cudaError_t, whichever the launcher returns
    int value;
    template <class T>
    operator T() const {
      return static_cast<T>(value);
    }
  };
  Code failed() { return {cuemu_guard_failed(this)}; }
};
