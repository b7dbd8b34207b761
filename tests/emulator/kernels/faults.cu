// One small kernel for each way to fail. A comment "// NAME" at a line's end marks the line that the
// error must name.
#include <cassert>
#include <cstdint>
#include <cstdio>
#include <cuda_runtime.h>

#define RUN(name, grid, block)               \
  extern "C" int run_##name(float* p) {      \
    name<<<grid, block>>>(p);                \
    return cudaGetLastError();               \
  }

__global__ void wild(float* p) {
  if (threadIdx.x == 5 && blockIdx.x == 1)
    p[1ull << 40] = 1.f;  // wild
  __syncthreads();
}
RUN(wild, 2, 64)

__global__ void null_write(float* p) {
  float* nothing = p[0] < 1e30f ? nullptr : p;
  nothing[threadIdx.x + 3] = 1.f;  // null_write
}
RUN(null_write, 1, 32)

__device__ __noinline__ void store(float* p, long i) {
  p[i] = 2.f;  // in_function
}
__global__ void in_function(float* p) { store(p, 1l << 40); }
RUN(in_function, 1, 32)

__device__ __forceinline__ float strided_sum(const float* p, long stride) {
  float sum = 0;
  for (int i = 0; i < 4; ++i)
    sum += p[i * stride];  // inlined
  return sum;
}
__global__ void inlined(float* p) {
  p[0] = strided_sum(p, 1l << 40);
}
RUN(inlined, 1, 32)

__global__ void in_library(float* p) {
  memset(p + (1l << 40), 0, 4096 * (1 + threadIdx.x));  // in_library
}
RUN(in_library, 1, 1)

__global__ void wild_atomic(float* p) {
  atomicAdd(p + (1l << 42), 1.f);  // wild_atomic
}
RUN(wild_atomic, 1, 32)

__global__ void past_dynamic(float* p) {
  extern __shared__ float s[];
  s[threadIdx.x + 32] = p[0];  // past_dynamic
  __syncthreads();
}
extern "C" int run_past_dynamic(float* p) {
  past_dynamic<<<1, 32, 32 * sizeof(float)>>>(p);
  return cudaGetLastError();
}

__device__ __noinline__ float deep(float* p, int n) {
  float a[4096];  // 16 KiB
  for (int i = 0; i < 4096; ++i) a[i] = p[i & 31];
  return n ? deep(p, n - 1) + a[n] : a[5];
}
__global__ void overflow(float* p) { p[threadIdx.x] = deep(p, 10); }
RUN(overflow, 1, 32)

__global__ void divide(float* p) {
  const int zero = int(p[0]) - int(p[1]);
  p[threadIdx.x] = 7 / zero;  // divide
}
RUN(divide, 1, 32)

__global__ void spin(float* p) {
  volatile float* flag = p;
  if (threadIdx.x == 0) {
    while (*flag != 77.f) {}  // spin
  } else if (threadIdx.x == 1) {
    *flag = 77.f;
  }
}
RUN(spin, 1, 32)

__global__ void forever(float* p) {  // forever
  for (;;) {}
}
RUN(forever, 3, 32)

__global__ void endless_barriers(float* p) {
  while (p[1] == p[1])
    __syncthreads();  // endless_barriers
}
RUN(endless_barriers, 1, 64)

__global__ void endless_function(float* p) {
  float x = p[1];
  while (x == x)
    x = expf(-x);  // endless_function
  p[0] = x;
}
RUN(endless_function, 1, 1)

// The two halves of a block wait at different barriers.
__global__ void divergent(float* p) {
  if (threadIdx.x < 128) {
    p[0] = 1;
    __syncthreads();  // divergent_first
  } else {
    p[1] = 1;
    __syncthreads();  // divergent_second
  }
}
RUN(divergent, 1, 256)

// Half of the threads return before the barrier: legal since Volta.
__global__ void early_return(float* p) {
  if (threadIdx.x >= 128) return;
  p[threadIdx.x] = 1;
  __syncthreads();  // early_return
  p[threadIdx.x] += 1;
}
RUN(early_return, 1, 256)

__global__ void deadlock(float* p) {
  if (threadIdx.x < 100)
    __syncthreads();  // deadlock_barrier
  else
    __syncwarp(0xf0000000u | 1u << (threadIdx.x % 32) | 1u);  // deadlock_warp
  p[threadIdx.x] = 1;
}
RUN(deadlock, 1, 128)

__global__ void shuffle_in_branch(float* p) {
  float v = threadIdx.x;
  if (threadIdx.x < 16)
    v += __shfl_down_sync(0xffffffffu, v, 8);  // shuffle_in_branch
  else
    __syncthreads();
  p[threadIdx.x] = v;
}
RUN(shuffle_in_branch, 1, 32)

__global__ void not_in_mask(float* p) {
  float v = threadIdx.x;
  v += __shfl_down_sync(0x0000ffffu, v, 8);  // not_in_mask
  p[threadIdx.x] = v;
}
RUN(not_in_mask, 1, 32)

__global__ void asserts(float* p) {
  assert(threadIdx.x != 77);  // asserts
  p[threadIdx.x] = 3;
}
RUN(asserts, 1, 256)

__global__ void traps(float* p) {
  if (p[0] < 1e30f && threadIdx.x == 3) __trap();  // traps
}
RUN(traps, 1, 32)

__global__ void static_shared(float* p) {
  __shared__ float big[12000];
  __shared__ float more[1000];  // static_shared
  big[threadIdx.x] = more[threadIdx.x] = p[0];
}
RUN(static_shared, 1, 32)

__global__ void fills(float* p) { p[threadIdx.x] = 4; }
extern "C" int run_fills(float* p, int gx, int gy, int bx, int by, int bz, int bytes) {
  fills<<<dim3(gx, gy), dim3(bx, by, bz), bytes>>>(p);  // fills
  return cudaGetLastError();
}

// The second of three blocks fails, the third too: the reported one is the first of them.
__global__ void several(float* p) {
  if (blockIdx.x > 0) {
    for (int i = 0; blockIdx.x == 1 && i < 1000000; ++i) p[blockIdx.x] = i;
    assert(blockIdx.x == 0);  // several
  }
}
RUN(several, 3, 32)

// A launch that is longer than a test wants to wait, but not endless.
__global__ void slow(float* p) {
  volatile float* v = p;
  for (long i = 0; i < 20000000000l; ++i) *v = i;  // slow
}
RUN(slow, 1, 1)
