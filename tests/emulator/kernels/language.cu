// The language: launches of every form, shared memory of every form.
#include <cfloat>
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>
// a comment with k<<<1, 2>>>(x) and __shared__ float z[3];
static const char* text = "k<<<1,2>>>(\"x\") __shared__ int q[2];";
extern __shared__ float dynamic[];  // at file scope

template <typename T, int N>
struct Tile {
  T v[N][N + 1];
};

namespace outer {
namespace inner {
template <typename T, int N, int M = 2>
__global__ void shared_forms(T* out, const T* in) {
  __shared__ __align__(16) T a[N], b[N];
  __shared__ Tile<T, 4> tile; __shared__ T grid2d[4][N / 4 + 1];
  __shared__ volatile int flag;
  __shared__ const T *pointer, *others[2];
  __shared__ struct { int x; T y; } pair;
  __shared__ alignas(32) unsigned char bytes[3];
  __shared__ double first_double;
  const int t = threadIdx.x;
  a[t] = in[t];
  b[t] = 2 * in[t];
  dynamic[t] = in[t];
  grid2d[t % 4][t / 4] = in[t];
  if (t < 16) tile.v[t / 4][t % 4] = in[t];
  if (t == 0) {
    flag = 3;
    pointer = others[1] = a + 1;
    pair.x = 4;
    pair.y = T(5);
    bytes[2] = 6;
    first_double = 0.5;
  }
  __syncthreads();
  out[t] = a[N - 1 - t] + b[N - 1 - t] + dynamic[N - 1 - t] + grid2d[1][0] + tile.v[1][1];
  if (t == 0) {
    out[N] = flag + pair.x + pair.y + bytes[2] + T(first_double) + *pointer + others[1][0];
    out[N + 1] = T(reinterpret_cast<size_t>(a) % 16 + reinterpret_cast<size_t>(bytes) % 32 +
                   reinterpret_cast<size_t>(&first_double) % 8);
    out[N + 2] = T(sizeof(a) + sizeof(grid2d));
  }
}
}  // namespace inner
}  // namespace outer

__global__ void fill(float* o, float value) { o[threadIdx.x] = value; }
namespace templated {
template <int kAdd>
__global__ void add(float* o) { o[threadIdx.x] += kAdd; }
}
struct Scale { float factor; };
__global__ void by_value(Scale s, float* o, const int* __restrict__ index) { o[threadIdx.x] = s.factor * index[threadIdx.x]; }
template <class F>
__global__ void generic(F f, float* o) { o[threadIdx.x] = f(threadIdx.x); }
struct Square {
  __host__ __device__ float operator()(int i) const { return float(i * i); }
};
template <typename T>
__global__ void deduced(T* o, T value, const float* maybe) { o[threadIdx.x] = maybe ? T(0) : value; }
__global__ void no_arguments() {}

extern "C" cudaError_t language(float* o, const float* in, const int* index) {
  constexpr int N = 64;
  cudaStream_t stream = 0;
  outer::inner::shared_forms<float, N><<<1,
                                         dim3(N, 1, 1),
                                         N * sizeof(float), /* the stream: */ stream>>>(
      o, (N > 2 ? in : nullptr));
  by_value<<<1, 32>>>(Scale{2.f}, o + 128, index);
  generic<Square><<<1, 32>>>(Square{}, o + 160);
  generic<<<dim3(1), 32>>>([] __device__(int i) { return float(i + 1); }, o + 192);
  fill<<<1, 32, 0>>>(o + 224, 7.f);
  ::templated::add<3><<<(1), (32)>>>(o + 224);
  deduced<<<1, 32>>>(o + 256, 1.5f, NULL);
  auto kernel = &fill;
  kernel<<<1, 32>>>(o + 288, 9.f);
  void (*table[])(float*, float) = {fill};
  if (in) table[0]<<<1, 32>>>(o + 320, 11.f); else no_arguments<<<1, 1>>>();
  no_arguments <<< 2, 3 >>> ( );
  int x = 1 << 3; x >>= 1; int many = 1'000;
  if (text[0] != 'k' || x != 4 || many != 1000) return cudaErrorUnknown;
  return cudaGetLastError();
}

// threadIdx and the rest, in all three dimensions.
__global__ void indices(int* o) {
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const dim3 copied = threadIdx;
  o[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = 1000 * block + thread + (copied.z != threadIdx.z);
}
extern "C" int run_indices(int* o) {
  indices<<<dim3(2, 3, 2), dim3(5, 3, 2)>>>(o);
  return cudaGetLastError();
}

// Device functions with their own shared memory; one variable for each instantiation.
template <int kStep>
__device__ __noinline__ float neighbour(float v) {
  __shared__ float s[64];
  s[threadIdx.x] = v;
  __syncthreads();
  const float r = s[(threadIdx.x + kStep) % 64];
  __syncthreads();
  return r;
}
static __device__ __forceinline__ float twice(float x) { return 2 * x; }
__global__ void __launch_bounds__(64) with_functions(float* o) {
  const float t = threadIdx.x;
  o[threadIdx.x] = neighbour<1>(t) + 100 * twice(neighbour<2>(t));
}
extern "C" int run_functions(float* o) {
  with_functions<<<1, 64>>>(o);
  return cudaGetLastError();
}

// Dynamic shared memory over 48 KiB, cut into two arrays; the sum of a block.
__global__ void large_dynamic(float* o, int n) {
  extern __shared__ __align__(16) unsigned char raw[];
  float* a = reinterpret_cast<float*>(raw);
  float4* quads = reinterpret_cast<float4*>(raw) + n / 4;
  for (int i = threadIdx.x; i < n; i += blockDim.x) a[i] = i;
  for (int i = threadIdx.x; i < n / 4; i += blockDim.x) quads[i] = make_float4(1, 2, 3, 4);
  __syncthreads();
  if (threadIdx.x == 0) o[0] = a[n - 1] + quads[n / 4 - 1].w;
}
extern "C" int run_large_dynamic(float* o, int n, int opt_in) {
  const int bytes = 2 * n * sizeof(float);
  if (opt_in) {
    const cudaError_t error = cudaFuncSetAttribute(large_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
  }
  large_dynamic<<<1, 64, bytes>>>(o, n);
  return cudaGetLastError();
}

// Shared memory starts poisoned in every block.
__global__ void poison(float* o) {
  extern __shared__ float d[];
  __shared__ float s[32];
  o[(blockIdx.x * 32 + threadIdx.x) * 2] = s[threadIdx.x];
  o[(blockIdx.x * 32 + threadIdx.x) * 2 + 1] = d[threadIdx.x];
  s[threadIdx.x] = d[threadIdx.x] = 1;
}
extern "C" int run_poison(float* o) {
  poison<<<4, 32, 128>>>(o);
  return cudaGetLastError();
}

// __constant__ and __device__ variables.
__constant__ float coefficients[2] = {3.f, 4.f};
__device__ int counter;
__global__ void uses_globals(float* o) {
  o[threadIdx.x] = coefficients[threadIdx.x & 1];
  if (threadIdx.x == 0) atomicAdd(&counter, 1);
}
extern "C" int run_globals(float* o, const float* values, int* count) {
  uses_globals<<<1, 32>>>(o);
  if (cudaMemcpyToSymbol(coefficients, values, 2 * sizeof(float)) != cudaSuccess) return -1;
  uses_globals<<<2, 32>>>(o + 32);
  cudaMemcpyFromSymbol(count, counter, sizeof(int));
  if (cudaMemcpyToSymbol(coefficients, values, 12) != cudaErrorInvalidValue) return -2;
  return cudaGetLastError();
}

// Host calls of a launcher.
__global__ void copy(float* to, const float* from, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = __ldg(from + i) + 1;
}
extern "C" int host_calls(float* o, const float* in, int n, cudaStream_t stream) {
  int device = -1, processors = 0, count = 0, blocks = 0;
  float *scratch, *more, ms = -1;
  cudaEvent_t start, stop;
  cudaDeviceProp properties;
  cudaGetDeviceCount(&count);
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaGetDeviceProperties(&properties, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, copy, 256, 0);
  cudaMalloc(&scratch, n * sizeof(float));
  cudaMallocAsync((void**)&more, n * sizeof(float), stream);
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  cudaEventRecord(start, stream);
  cudaMemsetAsync(more, 0, n * sizeof(float), stream);
  copy<<<(n + 255) / 256, 256, 0, stream>>>(scratch, in, n);
  cudaMemcpyAsync(o, scratch, n * sizeof(float), cudaMemcpyDeviceToDevice, stream);
  o[0] += more[n - 1];
  cudaEventRecord(stop, stream);
  cudaEventSynchronize(stop);
  cudaEventElapsedTime(&ms, start, stop);
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaFree(scratch);
  cudaFreeAsync(more, stream);
  if (device != 0 || count != 1 || processors < 1 || properties.warpSize != 32 || blocks != 8 || ms < 0) return -1;
  if (cudaDeviceSynchronize() != cudaSuccess || cudaPeekAtLastError() != cudaSuccess) return -2;
  if (cudaSetDevice(1) != cudaErrorInvalidDevice || cudaGetLastError() != cudaErrorInvalidDevice) return -3;
  if (strcmp(cudaGetErrorString(cudaErrorInvalidConfiguration), "invalid configuration argument") != 0) return -4;
  return cudaStreamSynchronize(stream);
}

__global__ void prints() {
  if (threadIdx.x == 0) { printf("block %d of %d\n", blockIdx.x, gridDim.x); printf("done\n"); }
}
extern "C" int run_prints() {
  prints<<<4, 32>>>();
  return cudaGetLastError();
}
