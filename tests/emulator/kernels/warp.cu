// Barriers, warp operations, atomics, cooperative groups.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_runtime.h>
namespace cg = cooperative_groups;

#define LAUNCHER(name, threads, type)        \
  extern "C" int run_##name(type* o) {       \
    name<<<1, threads>>>(o);                 \
    return cudaGetLastError();               \
  }

// o[k][lane]: each shuffle with its delta and width, of the value 100 + lane.
__global__ void shuffles(int* o) {
  const int lane = threadIdx.x, v = 100 + lane;
  int k = 0;
  for (int width = 4; width <= 32; width *= 2)
    for (int d = 0; d < 5; ++d) {
      o[k++ * 32 + lane] = __shfl_sync(0xffffffffu, v, d, width);
      o[k++ * 32 + lane] = __shfl_up_sync(0xffffffffu, v, d, width);
      o[k++ * 32 + lane] = __shfl_down_sync(0xffffffffu, v, d, width);
      o[k++ * 32 + lane] = __shfl_xor_sync(0xffffffffu, v, d, width);
    }
}
LAUNCHER(shuffles, 32, int)

__global__ void shuffle_types(double* o) {
  const int lane = threadIdx.x;
  o[lane] = __shfl_xor_sync(~0u, 0.1 + lane, 1) + __shfl_xor_sync(~0u, 0.5f + lane, 1) + __shfl_xor_sync(~0u, 1ull << lane, 1) + __shfl_down_sync(~0u, (short)-lane, 1);
}
LAUNCHER(shuffle_types, 32, double)

// Two halves of a warp work apart, on masks of their own.
__global__ void half_warps(int* o) {
  const int lane = threadIdx.x;
  int v = lane;
  if (lane < 16) {
    for (int d = 8; d > 0; d /= 2) v += __shfl_xor_sync(0x0000ffffu, v, d);
  } else {
    for (int i = 0; i < 2; ++i) __syncwarp(0xffff0000u);
    for (int d = 8; d > 0; d /= 2) v = max(v, __shfl_xor_sync(0xffff0000u, v, d));
  }
  o[lane] = v;
}
LAUNCHER(half_warps, 32, int)

__global__ void votes(unsigned* o) {
  const int lane = threadIdx.x;
  o[lane] = __ballot_sync(~0u, lane % 3 == 0);
  o[32 + lane] = __any_sync(~0u, lane == 7) + 2 * __any_sync(~0u, lane > 99) + 4 * __all_sync(~0u, lane < 32) + 8 * __all_sync(~0u, lane < 31);
  o[64 + lane] = __match_any_sync(~0u, lane / 5);
  int same, other;
  o[96 + lane] = __match_all_sync(~0u, 7, &same) + __match_all_sync(~0u, lane, &other) + (same ? 1 : 0) + other;
  o[128 + lane] = __reduce_add_sync(~0u, unsigned(lane)) + 1000 * __reduce_max_sync(~0u, unsigned(lane)) + 100000 * __reduce_min_sync(~0u, unsigned(lane + 3));
  o[160 + lane] = __reduce_or_sync(~0u, 1u << lane) - __reduce_and_sync(~0u, ~(1u << lane)) - __reduce_xor_sync(~0u, unsigned(lane));
}
LAUNCHER(votes, 32, unsigned)

// The lanes that a branch leaves together.
__global__ void active_masks(unsigned* o) {
  const int lane = threadIdx.x;
  o[lane] = __activemask();
  if (lane % 2) {
    o[32 + lane] = __activemask();
    cg::coalesced_group g = cg::coalesced_threads();
    o[64 + lane] = cg::reduce(g, lane, cg::plus<int>()) * 100 + g.thread_rank();
    o[96 + lane] = g.shfl(lane, 2) + 100 * g.size() + 10000 * g.ballot(lane > 16);
  } else {
    o[32 + lane] = __activemask();
  }
}
LAUNCHER(active_masks, 32, unsigned)

__global__ void block_votes(int* o) {
  const int t = threadIdx.x;
  o[t] = __syncthreads_count(t % 3 == 0);
  o[64 + t] = __syncthreads_or(t == 9) + 2 * __syncthreads_or(t > 99) + 4 * __syncthreads_and(t < 64) + 8 * __syncthreads_and(t != 5);
}
LAUNCHER(block_votes, 64, int)

__global__ void groups(float* o) {
  cg::thread_block block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  auto tile = cg::tiled_partition<8>(warp);
  const float v = block.thread_rank();
  o[block.thread_rank()] = cg::reduce(tile, v, cg::plus<float>());
  o[64 + block.thread_rank()] = cg::reduce(warp, v, cg::greater<float>()) + 100 * cg::reduce(tile, v, cg::less<float>());
  o[128 + block.thread_rank()] = tile.thread_rank() + 10 * tile.meta_group_rank() + 100 * tile.size() + 1000 * tile.shfl_down(1, 2) + tile.any(v == 3);
  block.sync();
  cg::sync(warp);
  if (warp.thread_rank() == 0) o[192 + warp.meta_group_rank()] = block.size() + warp.meta_group_size();
  o[200 + block.thread_rank()] = cg::this_grid().thread_rank();
}
LAUNCHER(groups, 64, float)

// A block whose last warp is not full.
__global__ void partial_warp(float* o) {
  float v = 1;
  for (int d = 16; d > 0; d /= 2) {
    const float other = __shfl_down_sync(0xffffffffu, v, d);
    if (threadIdx.x + d < 40) v += other;
  }
  __syncthreads();
  o[threadIdx.x] = v;
}
LAUNCHER(partial_warp, 40, float)

// Every atomic, from several blocks; `i` and `u` start as the test set them.
__global__ void integer_atomics(int* i, unsigned* u, unsigned long long* w) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&i[0], t);
  atomicSub(&i[1], t);
  atomicMax(&i[2], t - 50);
  atomicMin(&i[3], 20 - t);
  atomicAdd_block(&i[4], 1);
  atomicAdd_system(&i[5], 2);
  atomicAnd(&u[0], ~(1u << (t % 32)));
  atomicOr(&u[1], 1u << (t % 32));
  atomicXor(&u[2], 1u << (t % 32));
  atomicInc(&u[3], 9);
  atomicDec(&u[4], 9);
  atomicMax(&u[5], 0x80000000u + t);
  atomicExch(&u[6], t);
  while (true) {  // an addition by compare and swap
    const unsigned old = u[7];
    if (atomicCAS(&u[7], old, old + 1) == old) break;
  }
  atomicAdd(&w[0], 1ull << 40);
  atomicMax(&w[1], (unsigned long long)t << 33);
  atomicCAS(&w[2], 5ull, 6ull);
}
extern "C" int run_integer_atomics(int* i, unsigned* u, unsigned long long* w) {
  integer_atomics<<<4, 64>>>(i, u, w);
  return cudaGetLastError();
}

__global__ void float_atomics(float* f, double* d, const float* x) {
  __shared__ float block_sum;
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x == 0) block_sum = 0;
  __syncthreads();
  atomicAdd(&block_sum, x[t]);
  atomicAdd(f, x[t]);
  atomicAdd(d, x[t]);
  atomicExch(f + 1, 4.5f);
  __syncthreads();
  if (threadIdx.x == 0) f[2 + blockIdx.x] = block_sum;
}
extern "C" int run_float_atomics(float* f, double* d, const float* x, int blocks) {
  float_atomics<<<blocks, 64>>>(f, d, x);
  return cudaGetLastError();
}

// The last block to finish adds up what the others left (threadFenceReduction of CUDA's samples).
__global__ void last_block(const float* a, float* parts, unsigned* count, float* o) {
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = a[blockIdx.x];
    __threadfence();
    is_last = atomicAdd(count, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last && threadIdx.x == 0) {
    float s = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) s += parts[i];
    o[0] = s;
  }
}
extern "C" int run_last_block(const float* a, float* parts, unsigned* count, float* o) {
  last_block<<<16, 32>>>(a, parts, count, o);
  return cudaGetLastError();
}

// A lock that every thread takes in turn; needs the independent progress of Volta's threads.
__global__ void spin_lock(int* lock, int* count) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      ++*count;
      atomicExch(lock, 0);
      done = true;
    }
  }
  while (atomicExch(lock, 1)) {}
  ++*count;
  atomicExch(lock, 0);
}
extern "C" int run_spin_lock(int* lock, int* count) {
  spin_lock<<<2, 64>>>(lock, count);
  return cudaGetLastError();
}

__global__ void sleeps(volatile int* flag) {
  if (threadIdx.x == 0) while (*flag == 0) __nanosleep(100);
  if (threadIdx.x == 40) *flag = 1;
}
LAUNCHER(sleeps, 64, int)

// Without a barrier between write and read the sum depends on the order of the threads.
__global__ void racy(float* o) {
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  o[threadIdx.x] = s[63 - threadIdx.x];
}
LAUNCHER(racy, 64, float)

__global__ void order(int* o) { o[atomicAdd(o, 1) + 1] = blockIdx.x * 64 + threadIdx.x; }
extern "C" int run_order(int* o) {
  order<<<5, 64>>>(o);
  return cudaGetLastError();
}

// A tree reduction: healthy in every order.
__global__ void tree(const float* x, float* o) {
  __shared__ float s[256];
  s[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  for (int k = 128; k > 0; k >>= 1) {
    if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x == 0) o[blockIdx.x] = s[0];
}
extern "C" int run_tree(const float* x, float* o) {
  tree<<<8, 256>>>(x, o);
  return cudaGetLastError();
}
