// v2_shared: threads of a block share what they load.
//
// v1 read every element of query and negatives from global memory once for each thread that needed it, and let a single
// thread walk a whole row. Here a block stages tiles of both operands in shared memory, so that each element is loaded
// once a tile instead of 32 times, by neighbouring threads from neighbouring addresses; and a row's maximum and sum are
// a tree reduction by 256 threads.
//
// Forward: 5 launches. 2 B N D FLOPs, and 4 (2 B N D / 32 + 3 B N) bytes asked of the caches where v1's threads ask for
// 4 (2 B N D + 3 B N). Limit: two shared-memory loads for each multiply-add, and the (B, N) matrix, which is written once
// and read twice.
// Backward: 4 launches, 4 B N D FLOPs.
#include "infonce.cuh"

constexpr int kTile = 32;      // a block of 32 x 32 threads computes a 32 x 32 tile of a product
constexpr int kThreads = 256;  // a block of 256 threads reduces a row

// ---- matrix products through shared memory --------------------------------------------------------------------------

// c (M, N) = a (M, K) b (K, N). A transposed operand lies in memory as (K, M) or (N, K), row after row. In either case
// threadIdx.x runs along the rows in memory, so neighbouring threads read neighbouring floats: 32 of them are 4 sectors,
// the least there is.
//
// Each tile row is padded by one float. Shared memory has 32 banks of one word: without the padding the 32 elements of a
// column would all lie in one bank, and threads that write a column would wait for 32 passes instead of 1.
template <bool kTransposeA, bool kTransposeB, bool kDropInfinities>
__global__ void __launch_bounds__(kTile* kTile)
    product_kernel(const float* a, const float* b, float* c, int M, int N, int K) {
  __shared__ float a_tile[kTile][kTile + 1];  // [m][k]
  __shared__ float b_tile[kTile][kTile + 1];  // [k][n]
  const int x = threadIdx.x, y = threadIdx.y;
  // Tiles are numbered along one grid dimension, because the other two end at 65,535 blocks.
  const long long tiles_along_n = (N + kTile - 1) / kTile;
  const long long first_m = blockIdx.x / tiles_along_n * kTile, first_n = blockIdx.x % tiles_along_n * kTile;

  float sum = 0.0f;
  for (long long first_k = 0; first_k < K; first_k += kTile) {
    if (kTransposeA) {
      const long long m = first_m + x, k = first_k + y;
      a_tile[x][y] = m < M && k < K ? a[k * M + m] : 0.0f;
    } else {
      const long long m = first_m + y, k = first_k + x;
      a_tile[y][x] = m < M && k < K ? a[m * K + k] : 0.0f;
    }
    if (kTransposeB) {
      const long long n = first_n + y, k = first_k + x;
      b_tile[x][y] = n < N && k < K ? b[n * K + k] : 0.0f;
    } else {
      const long long n = first_n + x, k = first_k + y;
      const float element = n < N && k < K ? b[k * N + n] : 0.0f;
      b_tile[y][x] = kDropInfinities ? finite_or_nan(element) : element;
    }
    __syncthreads();  // the tiles are complete before anyone reads them
    for (int k = 0; k < kTile; ++k) sum += a_tile[y][k] * b_tile[k][x];
    __syncthreads();  // everyone has read them before the next ones overwrite them
  }
  const long long m = first_m + y, n = first_n + x;
  if (m < M && n < N) c[m * N + n] = sum;
}

template <bool kTransposeA, bool kTransposeB, bool kDropInfinities>
static void launch_product(const float* a, const float* b, float* c, int M, int N, int K, cudaStream_t stream) {
  const long long tiles = ((M + kTile - 1ll) / kTile) * ((N + kTile - 1ll) / kTile);
  if (tiles == 0) return;
  product_kernel<kTransposeA, kTransposeB, kDropInfinities>
      <<<static_cast<unsigned>(tiles), dim3(kTile, kTile), 0, stream>>>(a, b, c, M, N, K);
}

// ---- reductions through shared memory -------------------------------------------------------------------------------

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Maximum {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Combines one value of each of the block's 256 threads; every thread gets the result. Halving the stride keeps the
// busy threads together (whole warps retire) and their addresses adjacent (no two lanes in one bank).
template <class T, class Operator>
__device__ T block_reduce(T value, T* shared, Operator combine) {
  const int t = threadIdx.x;
  shared[t] = value;
  __syncthreads();
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    if (t < stride) shared[t] = combine(shared[t], shared[t + stride]);
    __syncthreads();
  }
  const T result = shared[0];
  __syncthreads();  // everyone has read the result before the buffer is used again
  return result;
}

__device__ CosineSums cosine_sums(const float* query, const float* positive, size_t i, int D) {
  __shared__ double shared[kThreads];
  CosineSums sums = {0.0, 0.0, 0.0};
  for (int d = threadIdx.x; d < D; d += kThreads) {
    const double q = query[i * D + d], p = positive[i * D + d];
    sums.dot += q * p;
    sums.query_squared += q * q;
    sums.positive_squared += p * p;
  }
  return {block_reduce(sums.dot, shared, Sum{}), block_reduce(sums.query_squared, shared, Sum{}),
          block_reduce(sums.positive_squared, shared, Sum{})};
}

// ---- forward: one block a query -------------------------------------------------------------------------------------

__global__ void positive_kernel(const float* query, const float* positive, float* positive_logits, int D,
                                Temperature temperature) {
  const CosineSums sums = cosine_sums(query, positive, blockIdx.x, D);
  if (threadIdx.x == 0) positive_logits[blockIdx.x] = cosine_logit(sums, temperature.inverse());
}

__global__ void maximum_kernel(const float* similarities, const float* positive_logits, float* maxima, int N,
                               Temperature temperature) {
  __shared__ float shared[kThreads];
  const float* row = similarities + static_cast<size_t>(blockIdx.x) * N;
  const float inverse_temperature = temperature.inverse();
  float maximum = fmaxf(-FLT_MAX, positive_logits[blockIdx.x]);
  for (int j = threadIdx.x; j < N; j += kThreads) maximum = fmaxf(maximum, logit(row[j], inverse_temperature));
  maximum = block_reduce(maximum, shared, Maximum{});
  if (threadIdx.x == 0) maxima[blockIdx.x] = maximum;
}

__global__ void sum_kernel(const float* similarities, const float* maxima, float* sums, int N,
                           Temperature temperature) {
  __shared__ float shared[kThreads];
  const float* row = similarities + static_cast<size_t>(blockIdx.x) * N;
  const float inverse_temperature = temperature.inverse(), maximum = maxima[blockIdx.x];
  float sum = 0.0f;
  for (int j = threadIdx.x; j < N; j += kThreads) sum += expf(logit(row[j], inverse_temperature) - maximum);
  sum = block_reduce(sum, shared, Sum{});
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void loss_kernel(const float* positive_logits, const float* maxima, const float* sums, float* loss, int B) {
  const long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < B) loss[i] = softplus(negative_excess(maxima[i], sums[i], positive_logits[i]));
}

// statistics (3, B): the positive logit, the largest logit and the sum of exponentials of each query, kept for backward.
extern "C" cudaError_t infonce_forward(const float* query, const float* positive, const float* negatives,
                                       float* similarities, float* statistics, float* loss, float temperature,
                                       const float* temperature_tensor, int B, int N, int D, cudaStream_t stream) {
  if (B == 0) return cudaSuccess;
  const Temperature tau = {temperature, temperature_tensor};
  float *positive_logits = statistics, *maxima = statistics + B, *sums = statistics + 2ll * B;

  launch_product<false, true, false>(query, negatives, similarities, B, N, D, stream);
  positive_kernel<<<B, kThreads, 0, stream>>>(query, positive, positive_logits, D, tau);
  maximum_kernel<<<B, kThreads, 0, stream>>>(similarities, positive_logits, maxima, N, tau);
  sum_kernel<<<B, kThreads, 0, stream>>>(similarities, maxima, sums, N, tau);
  loss_kernel<<<(B + kThreads - 1) / kThreads, kThreads, 0, stream>>>(positive_logits, maxima, sums, loss, B);
  return cudaGetLastError();
}

// ---- backward -------------------------------------------------------------------------------------------------------

// One block a query: its row of G, G_ij = d loss / d similarity_ij = grad_loss_i w_i share_ij / tau, and, on the way, its
// part of d loss / d tau = -w (sum_j share_j s_j - s+) / tau. The caller adds the parts up.
__global__ void grad_similarities_kernel(const float* grad_loss, const float* similarities,
                                         const float* positive_logits, const float* maxima, const float* sums,
                                         float* grad_similarities, float* grad_temperature, int N,
                                         Temperature temperature) {
  __shared__ float shared[kThreads];
  const size_t i = blockIdx.x;
  const float maximum = maxima[i], sum = sums[i], inverse_temperature = temperature.inverse();
  const float grad_excess = grad_loss[i] * sigmoid(negative_excess(maximum, sum, positive_logits[i]));
  float expected_logit = 0.0f;
  for (int j = threadIdx.x; j < N; j += kThreads) {
    const float logit_j = logit(similarities[i * N + j], inverse_temperature);
    const float share = softmax_share(logit_j, maximum, sum);
    expected_logit += share_times_logit(share, logit_j);
    if (grad_similarities != nullptr) grad_similarities[i * N + j] = grad_excess * share * inverse_temperature;
  }
  expected_logit = block_reduce(expected_logit, shared, Sum{});
  if (threadIdx.x == 0 && grad_temperature != nullptr)
    grad_temperature[i] = -grad_excess * (expected_logit - positive_logits[i]) * inverse_temperature;
}

// One block a query: the positive's part of grad_query, and grad_positive.
__global__ void grad_positive_kernel(const float* grad_loss, const float* query, const float* positive,
                                     const float* positive_logits, const float* maxima, const float* sums,
                                     float* grad_query, float* grad_positive, int D, Temperature temperature) {
  const size_t i = blockIdx.x;
  const CosineGradient cosine = cosine_gradient(cosine_sums(query, positive, i, D), temperature.inverse());
  const double grad_logit = -grad_loss[i] * sigmoid(negative_excess(maxima[i], sums[i], positive_logits[i]));
  for (int d = threadIdx.x; d < D; d += kThreads) {
    const double q = query[i * D + d], p = positive[i * D + d];
    if (grad_query != nullptr)
      grad_query[i * D + d] += static_cast<float>(grad_logit * (cosine.cross * p - cosine.query_self * q));
    if (grad_positive != nullptr)
      grad_positive[i * D + d] = static_cast<float>(grad_logit * (cosine.cross * q - cosine.positive_self * p));
  }
}

// A gradient that nobody asked for comes as a null pointer and costs nothing.
extern "C" cudaError_t infonce_backward(const float* grad_loss, const float* query, const float* positive,
                                        const float* negatives, const float* similarities, const float* statistics,
                                        float* grad_similarities, float* grad_query, float* grad_positive,
                                        float* grad_negatives, float* grad_temperature, float temperature,
                                        const float* temperature_tensor, int B, int N, int D, cudaStream_t stream) {
  if (B == 0) return cudaSuccess;
  const Temperature tau = {temperature, temperature_tensor};
  const float *positive_logits = statistics, *maxima = statistics + B, *sums = statistics + 2ll * B;

  if (grad_similarities != nullptr || grad_temperature != nullptr)
    grad_similarities_kernel<<<B, kThreads, 0, stream>>>(grad_loss, similarities, positive_logits, maxima, sums,
                                                         grad_similarities, grad_temperature, N, tau);
  if (grad_query != nullptr)
    launch_product<false, false, true>(grad_similarities, negatives, grad_query, B, D, N, stream);
  if (grad_negatives != nullptr)
    launch_product<true, false, false>(grad_similarities, query, grad_negatives, N, D, B, stream);
  if (grad_query != nullptr || grad_positive != nullptr)
    grad_positive_kernel<<<B, kThreads, 0, stream>>>(grad_loss, query, positive, positive_logits, maxima, sums,
                                                     grad_query, grad_positive, D, tau);
  return cudaGetLastError();
}
