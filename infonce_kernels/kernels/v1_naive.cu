// v1_naive: one thread an output.
//
// Eager PyTorch (v0) hides what the GPU does behind a dozen library kernels. This rung writes every step of the loss as
// the simplest kernel that is right: a thread computes one number, alone, from global memory.
//
// Forward: 5 launches. 2 B N D FLOPs and about 4 (3 B N + (3 B + N) D) bytes if every cache were perfect. It is far from
// that: neighbouring threads take neighbouring queries, so a warp's loads lie D floats apart and touch 32 sectors of
// 32 bytes where 4 would do. Limit: memory transactions, not arithmetic.
// Backward: 5 launches, 4 B N D FLOPs, with the same fault.
#include "infonce.cuh"

constexpr int kThreads = 256;

static unsigned blocks_for(long long outputs) { return static_cast<unsigned>((outputs + kThreads - 1) / kThreads); }

__device__ long long output_index() { return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; }

// ---- forward --------------------------------------------------------------------------------------------------------

// One thread a similarity. Threads of a warp differ in i: query is read with a stride of D, similarities written with a
// stride of N; all of a warp reads the same element of negatives.
__global__ void similarities_kernel(const float* query, const float* negatives, float* similarities, int B, int N,
                                    int D) {
  const long long output = output_index();
  if (output >= static_cast<long long>(B) * N) return;
  const long long i = output % B, j = output / B;
  float sum = 0.0f;
  for (int d = 0; d < D; ++d) sum += query[i * D + d] * negatives[j * D + d];
  similarities[i * N + j] = sum;
}

__device__ CosineSums cosine_sums(const float* query, const float* positive, long long i, int D) {
  CosineSums sums = {0.0, 0.0, 0.0};
  for (int d = 0; d < D; ++d) {
    const double q = query[i * D + d], p = positive[i * D + d];
    sums.dot += q * p;
    sums.query_squared += q * q;
    sums.positive_squared += p * p;
  }
  return sums;
}

// From here on: one thread a query, so only B threads of a GPU that can hold a hundred thousand.
__global__ void positive_kernel(const float* query, const float* positive, float* positive_logits, int B, int D,
                                Temperature temperature) {
  const long long i = output_index();
  if (i < B) positive_logits[i] = cosine_logit(cosine_sums(query, positive, i, D), temperature.inverse());
}

__global__ void maximum_kernel(const float* similarities, const float* positive_logits, float* maxima, int B, int N,
                               Temperature temperature) {
  const long long i = output_index();
  if (i >= B) return;
  const float inverse_temperature = temperature.inverse();
  float maximum = fmaxf(-FLT_MAX, positive_logits[i]);
  for (int j = 0; j < N; ++j) maximum = fmaxf(maximum, logit(similarities[i * N + j], inverse_temperature));
  maxima[i] = maximum;
}

__global__ void sum_kernel(const float* similarities, const float* maxima, float* sums, int B, int N,
                           Temperature temperature) {
  const long long i = output_index();
  if (i >= B) return;
  const float inverse_temperature = temperature.inverse();
  double sum = 0.0;  // a single float sum would lose digits from some 100,000 terms on
  for (int j = 0; j < N; ++j) sum += expf(logit(similarities[i * N + j], inverse_temperature) - maxima[i]);
  sums[i] = static_cast<float>(sum);
}

__global__ void loss_kernel(const float* positive_logits, const float* maxima, const float* sums, float* loss, int B) {
  const long long i = output_index();
  if (i < B) loss[i] = softplus(negative_excess(maxima[i], sums[i], positive_logits[i]));
}

// statistics (3, B): the positive logit, the largest logit and the sum of exponentials of each query, kept for backward.
extern "C" cudaError_t infonce_forward(const float* query, const float* positive, const float* negatives,
                                       float* similarities, float* statistics, float* loss, float temperature,
                                       const float* temperature_tensor, int B, int N, int D, cudaStream_t stream) {
  if (B == 0) return cudaSuccess;
  const Temperature tau = {temperature, temperature_tensor};
  float *positive_logits = statistics, *maxima = statistics + B, *sums = statistics + 2ll * B;
  const unsigned logit_blocks = blocks_for(static_cast<long long>(B) * N), query_blocks = blocks_for(B);

  if (N > 0) similarities_kernel<<<logit_blocks, kThreads, 0, stream>>>(query, negatives, similarities, B, N, D);
  positive_kernel<<<query_blocks, kThreads, 0, stream>>>(query, positive, positive_logits, B, D, tau);
  maximum_kernel<<<query_blocks, kThreads, 0, stream>>>(similarities, positive_logits, maxima, B, N, tau);
  sum_kernel<<<query_blocks, kThreads, 0, stream>>>(similarities, maxima, sums, B, N, tau);
  loss_kernel<<<query_blocks, kThreads, 0, stream>>>(positive_logits, maxima, sums, loss, B);
  return cudaGetLastError();
}

// ---- backward -------------------------------------------------------------------------------------------------------

// One thread a similarity: G_ij = d loss / d similarity_ij = grad_loss_i w_i share_ij / tau.
__global__ void grad_similarities_kernel(const float* grad_loss, const float* similarities,
                                         const float* positive_logits, const float* maxima, const float* sums,
                                         float* grad_similarities, int B, int N, Temperature temperature) {
  const long long output = output_index();
  if (output >= static_cast<long long>(B) * N) return;
  const long long i = output % B, j = output / B;
  const float inverse_temperature = temperature.inverse();
  const float weight = sigmoid(negative_excess(maxima[i], sums[i], positive_logits[i]));
  const float share = softmax_share(logit(similarities[i * N + j], inverse_temperature), maxima[i], sums[i]);
  grad_similarities[i * N + j] = grad_loss[i] * weight * share * inverse_temperature;
}

// One thread an element of grad_query: the negatives' part, G times negatives.
__global__ void grad_query_kernel(const float* grad_similarities, const float* negatives, float* grad_query, int B,
                                  int N, int D) {
  const long long output = output_index();
  if (output >= static_cast<long long>(B) * D) return;
  const long long i = output % B, d = output / B;
  float sum = 0.0f;
  for (long long j = 0; j < N; ++j) sum += grad_similarities[i * N + j] * finite_or_nan(negatives[j * D + d]);
  grad_query[i * D + d] = sum;
}

// One thread an element of grad_negatives: G transposed times query.
__global__ void grad_negatives_kernel(const float* grad_similarities, const float* query, float* grad_negatives, int B,
                                      int N, int D) {
  const long long output = output_index();
  if (output >= static_cast<long long>(N) * D) return;
  const long long j = output % N, d = output / N;
  float sum = 0.0f;
  for (long long i = 0; i < B; ++i) sum += grad_similarities[i * N + j] * query[i * D + d];
  grad_negatives[j * D + d] = sum;
}

// One thread a query: the positive's part of grad_query, and grad_positive.
__global__ void grad_positive_kernel(const float* grad_loss, const float* query, const float* positive,
                                     const float* positive_logits, const float* maxima, const float* sums,
                                     float* grad_query, float* grad_positive, int B, int D, Temperature temperature) {
  const long long i = output_index();
  if (i >= B) return;
  const CosineGradient cosine = cosine_gradient(cosine_sums(query, positive, i, D), temperature.inverse());
  const double grad_logit = -grad_loss[i] * sigmoid(negative_excess(maxima[i], sums[i], positive_logits[i]));
  for (int d = 0; d < D; ++d) {
    const double q = query[i * D + d], p = positive[i * D + d];
    if (grad_query != nullptr)
      grad_query[i * D + d] += static_cast<float>(grad_logit * (cosine.cross * p - cosine.query_self * q));
    if (grad_positive != nullptr)
      grad_positive[i * D + d] = static_cast<float>(grad_logit * (cosine.cross * q - cosine.positive_self * p));
  }
}

// One thread a query: its part of d loss / d tau = -w (sum_j share_j s_j - s+) / tau. The caller adds the parts up.
__global__ void grad_temperature_kernel(const float* grad_loss, const float* similarities, const float* positive_logits,
                                        const float* maxima, const float* sums, float* grad_temperature, int B, int N,
                                        Temperature temperature) {
  const long long i = output_index();
  if (i >= B) return;
  const float inverse_temperature = temperature.inverse();
  double expected_logit = 0.0;
  for (int j = 0; j < N; ++j) {
    const float logit_j = logit(similarities[i * N + j], inverse_temperature);
    expected_logit += share_times_logit(softmax_share(logit_j, maxima[i], sums[i]), logit_j);
  }
  const float weight = sigmoid(negative_excess(maxima[i], sums[i], positive_logits[i]));
  grad_temperature[i] =
      -grad_loss[i] * weight * static_cast<float>(expected_logit - positive_logits[i]) * inverse_temperature;
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
  const unsigned query_blocks = blocks_for(B), grad_query_blocks = blocks_for(static_cast<long long>(B) * D);

  if (grad_similarities != nullptr && N > 0)
    grad_similarities_kernel<<<blocks_for(static_cast<long long>(B) * N), kThreads, 0, stream>>>(
        grad_loss, similarities, positive_logits, maxima, sums, grad_similarities, B, N, tau);
  if (grad_query != nullptr && D > 0)
    grad_query_kernel<<<grad_query_blocks, kThreads, 0, stream>>>(grad_similarities, negatives, grad_query, B, N, D);
  if (grad_negatives != nullptr && N > 0 && D > 0)
    grad_negatives_kernel<<<blocks_for(static_cast<long long>(N) * D), kThreads, 0, stream>>>(
        grad_similarities, query, grad_negatives, B, N, D);
  if (grad_query != nullptr || grad_positive != nullptr)
    grad_positive_kernel<<<query_blocks, kThreads, 0, stream>>>(grad_loss, query, positive, positive_logits, maxima,
                                                                sums, grad_query, grad_positive, B, D, tau);
  if (grad_temperature != nullptr)
    grad_temperature_kernel<<<query_blocks, kThreads, 0, stream>>>(grad_loss, similarities, positive_logits, maxima,
                                                                   sums, grad_temperature, B, N, tau);
  return cudaGetLastError();
}
