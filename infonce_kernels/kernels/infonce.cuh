// The formulas of the loss that every rung shares: a few numbers a query, none of them worth a trick.
//
// For query i with positive logit s+ and negatives' logits s_j, of largest m and sum S = sum_j exp(s_j - m):
//   L    = m + log(S)            log-sum-exp of the negatives; any m gives the same L, the largest cannot overflow
//   loss = softplus(L - s+)      = log(exp(s+) + sum_j exp(s_j)) - s+, with nothing that cancels when the loss is tiny
#pragma once
#include <cuda_runtime.h>
#include <cfloat>
#include <cmath>

// Each norm is clamped on its own, as torch.nn.functional.cosine_similarity does.
constexpr double kMinimumNorm = 1e-8;

// A number, or one element on the GPU that training learns: reading that one back would stall the CPU, so the
// kernel reads it. A learned temperature that is not positive and finite makes the loss NaN, never plausible.
struct Temperature {
  float value;
  const float* tensor;

  __device__ float inverse() const {
    const float temperature = tensor != nullptr ? *tensor : value;
    return temperature > 0.0f && temperature <= FLT_MAX ? 1.0f / temperature : NAN;
  }
};

// A logit, rounded once. Written as similarity * inverse_temperature - maximum, the compiler may fuse product and
// difference into one operation that does not round between; the largest logit would then differ from its own maximum by
// that rounding, which past 1e9 is more than exp can take.
__device__ inline float logit(float similarity, float inverse_temperature) {
  return __fmul_rn(similarity, inverse_temperature);
}

// The three sums over D that a cosine needs, in double: a float overflows once a norm passes 1.8e19, and the error of
// s+ goes straight into the loss. 3 D operations a query are nothing beside the N D of the negatives.
struct CosineSums {
  double dot, query_squared, positive_squared;
};

__device__ inline double clamped_norm(double squared) { return fmax(sqrt(squared), kMinimumNorm); }

__device__ inline float cosine_logit(const CosineSums& sums, float inverse_temperature) {
  const double norms = clamped_norm(sums.query_squared) * clamped_norm(sums.positive_squared);
  return static_cast<float>(sums.dot / norms * inverse_temperature);
}

// L - s+. The difference of two logits comes first: both may be large, and log(S) is at most log(N).
__device__ inline float negative_excess(float maximum, float sum, float positive_logit) {
  return (maximum - positive_logit) + logf(sum);
}

__device__ inline float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// w = d loss / d L = -d loss / d s+. As p - 1 it would lose every digit of a small weight, and with expf(-x) for a
// negative x it would overflow where the weight can still be told from 0.
__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// The share of one negative among the negatives, exp(s - L). Where every term of S underflowed the weight is 0 too.
__device__ inline float softmax_share(float logit, float maximum, float sum) {
  return sum > 0.0f ? expf(logit - maximum) / sum : sum;  // a NaN sum stays a NaN
}

// A share of 0 times a logit of -inf counts as 0: that column is as good as absent.
__device__ inline float share_times_logit(float share, float logit) { return share == 0.0f ? 0.0f : share * logit; }

// An infinite negative either has a logit of -inf, so a share of 0, or has already made the loss NaN. In the gradient
// of the query its infinite components must count as 0, because 0 * inf is NaN.
__device__ inline float finite_or_nan(float x) { return isinf(x) ? 0.0f : x; }

// d s+ / d query    = cross * positive - query_self * query
// d s+ / d positive = cross * query - positive_self * positive
// A norm that is clamped is a constant, so its own term vanishes.
struct CosineGradient {
  double cross, query_self, positive_self;
};

__device__ inline CosineGradient cosine_gradient(const CosineSums& sums, float inverse_temperature) {
  const double query_norm = clamped_norm(sums.query_squared), positive_norm = clamped_norm(sums.positive_squared);
  const double cross = inverse_temperature / (query_norm * positive_norm);
  const double positive_logit = cross * sums.dot;
  return {cross,
          query_norm > kMinimumNorm ? positive_logit / (query_norm * query_norm) : 0.0,
          positive_norm > kMinimumNorm ? positive_logit / (positive_norm * positive_norm) : 0.0};
}
