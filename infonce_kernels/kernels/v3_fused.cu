// v3_fused: the original design. cuBLAS multiplies; one kernel does everything else.
//
// v2 launches five kernels and passes its row maxima, sums and positive logits from one to the next through global
// memory, and its matrix product does two shared-memory loads for each multiply-add. Here the product is cuBLAS's
// (torch.matmul, before this file is called), and one block of 256 threads a query finishes the loss in one launch:
// positive logit, maximum, sum of exponentials, loss, each a reduction in shared memory, and thread 0 alone writes.
//
// Forward: 2 launches. 2 B N D FLOPs and 4 (3 B N + (3 B + N) D) bytes: the (B, N) matrix is written by cuBLAS and read
// twice here. Limit: at small sizes the launches, at large ones the product and then the traffic of that matrix.
// Backward: 1 launch and 2 products by cuBLAS, 4 B N D FLOPs. Forward keeps one float a query, so backward repeats the
// reductions: two more passes over the matrix.
#include "infonce.cuh"

constexpr int kThreads = 256;

struct QueryStatistics {
  CosineSums cosine;
  float positive_logit;
  float maximum;  // of all logits, the positive's included
  float sum;      // of exp(logit - maximum) over the negatives alone
};

// s_sum[0] = the sum over all threads. Halving the stride keeps busy threads and their addresses together: no bank is
// asked twice by a warp.
__device__ float block_sum(float value, float* s_sum) {
  const int t = threadIdx.x;
  s_sum[t] = value;
  __syncthreads();
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    if (t < stride) s_sum[t] += s_sum[t + stride];
    __syncthreads();
  }
  return s_sum[0];
}

// The three phases. All 256 threads of the block take part and get the result.
__device__ QueryStatistics query_statistics(const float* query, const float* positive, const float* similarities, int N,
                                            int D, float inverse_temperature) {
  __shared__ double s_dot[3][kThreads];
  __shared__ float s_max[kThreads];
  __shared__ float s_sum[kThreads];
  const int t = threadIdx.x;
  QueryStatistics result;

  // Phase 1: query . positive, and both squared norms, in one tree.
  double dot = 0.0, query_squared = 0.0, positive_squared = 0.0;
  for (int d = t; d < D; d += kThreads) {
    const double q = query[d], p = positive[d];
    dot += q * p;
    query_squared += q * q;
    positive_squared += p * p;
  }
  s_dot[0][t] = dot;
  s_dot[1][t] = query_squared;
  s_dot[2][t] = positive_squared;
  __syncthreads();
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    if (t < stride)
      for (int k = 0; k < 3; ++k) s_dot[k][t] += s_dot[k][t + stride];
    __syncthreads();
  }
  result.cosine = {s_dot[0][0], s_dot[1][0], s_dot[2][0]};
  result.positive_logit = cosine_logit(result.cosine, inverse_temperature);

  // Phase 2: the largest logit. It starts at -FLT_MAX and not at -inf: where every logit is -inf, the difference
  // logit - maximum must not become -inf + inf.
  float maximum = fmaxf(-FLT_MAX, result.positive_logit);
  for (int j = t; j < N; j += kThreads) maximum = fmaxf(maximum, logit(similarities[j], inverse_temperature));
  s_max[t] = maximum;
  __syncthreads();
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    if (t < stride) s_max[t] = fmaxf(s_max[t], s_max[t + stride]);
    __syncthreads();
  }
  result.maximum = s_max[0];

  // Phase 3: the sum of exponentials of the negatives. The positive stays out: log(exp(s+ - m) + sum) - s+ would cancel
  // to nothing just where training succeeds, when s+ is the largest logit by far.
  float sum = 0.0f;
  for (int j = t; j < N; j += kThreads) sum += expf(logit(similarities[j], inverse_temperature) - result.maximum);
  result.sum = block_sum(sum, s_sum);
  return result;
}

// One block a query.
__global__ void __launch_bounds__(kThreads)
    fused_forward_kernel(const float* query, const float* positive, const float* similarities, float* loss, int N,
                         int D, Temperature temperature) {
  const size_t i = blockIdx.x;
  const QueryStatistics row = query_statistics(query + i * D, positive + i * D, similarities + i * N, N, D,
                                               temperature.inverse());
  if (threadIdx.x == 0) loss[i] = softplus(negative_excess(row.maximum, row.sum, row.positive_logit));
}

extern "C" cudaError_t infonce_forward(const float* query, const float* positive, const float* similarities,
                                       float* loss, float temperature, const float* temperature_tensor, int B, int N,
                                       int D, cudaStream_t stream) {
  if (B == 0) return cudaSuccess;
  fused_forward_kernel<<<B, kThreads, 0, stream>>>(query, positive, similarities, loss, N, D,
                                                   Temperature{temperature, temperature_tensor});
  return cudaGetLastError();
}

// One block a query: its row of grad_similarities, G_ij = grad_loss_i w_i share_ij / tau, from which cuBLAS makes the
// negatives' part of the gradients; the positive's part of grad_query, to which cuBLAS adds; grad_positive; and the
// query's part of d loss / d tau = -w (sum_j share_j s_j - s+) / tau.
__global__ void __launch_bounds__(kThreads)
    fused_backward_kernel(const float* grad_loss, const float* query, const float* positive, const float* similarities,
                          float* grad_similarities, float* grad_query, float* grad_positive, float* grad_temperature,
                          int N, int D, Temperature temperature) {
  __shared__ float s_expected[kThreads];
  const int t = threadIdx.x;
  const size_t i = blockIdx.x;
  const float inverse_temperature = temperature.inverse();
  query += i * D;
  positive += i * D;
  similarities += i * N;
  const QueryStatistics row = query_statistics(query, positive, similarities, N, D, inverse_temperature);
  const float grad_excess = grad_loss[i] * sigmoid(negative_excess(row.maximum, row.sum, row.positive_logit));

  float expected_logit = 0.0f;
  for (int j = t; j < N; j += kThreads) {
    const float logit_j = logit(similarities[j], inverse_temperature);
    const float share = softmax_share(logit_j, row.maximum, row.sum);
    expected_logit += share_times_logit(share, logit_j);
    if (grad_similarities != nullptr) grad_similarities[i * N + j] = grad_excess * share * inverse_temperature;
  }
  if (grad_temperature != nullptr) {
    expected_logit = block_sum(expected_logit, s_expected);
    if (t == 0) grad_temperature[i] = -grad_excess * (expected_logit - row.positive_logit) * inverse_temperature;
  }

  const CosineGradient cosine = cosine_gradient(row.cosine, inverse_temperature);
  const double grad_logit = -grad_excess;
  for (int d = t; d < D; d += kThreads) {
    const double q = query[d], p = positive[d];
    if (grad_query != nullptr)
      grad_query[i * D + d] = static_cast<float>(grad_logit * (cosine.cross * p - cosine.query_self * q));
    if (grad_positive != nullptr)
      grad_positive[i * D + d] = static_cast<float>(grad_logit * (cosine.cross * q - cosine.positive_self * p));
  }
}

// A gradient that nobody asked for comes as a null pointer and costs nothing.
extern "C" cudaError_t infonce_backward(const float* grad_loss, const float* query, const float* positive,
                                        const float* similarities, float* grad_similarities, float* grad_query,
                                        float* grad_positive, float* grad_temperature, float temperature,
                                        const float* temperature_tensor, int B, int N, int D, cudaStream_t stream) {
  if (B == 0) return cudaSuccess;
  fused_backward_kernel<<<B, kThreads, 0, stream>>>(grad_loss, query, positive, similarities, grad_similarities,
                                                    grad_query, grad_positive, grad_temperature, N, D,
                                                    Temperature{temperature, temperature_tensor});
  return cudaGetLastError();
}
