// Floating-point numbers of 16 bits, half and bfloat16 alike: exact conversions, and arithmetic that
// rounds once, to nearest even, as the hardware's does.
//
// A sum, product, quotient or square root of two 16-bit numbers, computed as float, rounds to the
// same 16-bit number as the exact result: float has more than twice the bits plus two. A fused
// multiply-add has not that room, even as double; see fused().
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "math.h"

namespace cuemu {

template <int kExponentBits, int kFractionBits>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kInfinity = ((1u << kExponentBits) - 1) << kFractionBits;

  static uint16_t encode(double value) {
    const uint64_t bits = bit_copy<uint64_t>(value);
    const uint32_t sign = uint32_t(bits >> 63) << 15;
    if (value != value) return 0x7fff;  // the hardware's canonical NaN
    int exponent = int(bits >> 52 & 0x7ff) - 1023;
    if (exponent > kBias) return uint16_t(sign | kInfinity);
    uint64_t significand = (bits & ((uint64_t(1) << 52) - 1)) | uint64_t(1) << 52;
    int drop = 52 - kFractionBits;
    if (exponent < 1 - kBias) {  // the result is subnormal: it keeps fewer bits
      drop += 1 - kBias - exponent;
      exponent = -kBias;
      if (drop > 53) return uint16_t(sign);
    } else {
      significand &= ~(uint64_t(1) << 52);
    }
    const uint64_t kept = significand >> drop;
    const uint64_t lost = significand & ((uint64_t(1) << drop) - 1), half = uint64_t(1) << (drop - 1);
    // A carry out of the fraction moves into the exponent, which is what it should do.
    const uint64_t rounded = kept + (lost > half || (lost == half && (kept & 1)));
    return uint16_t(sign | ((uint32_t(exponent + kBias) << kFractionBits) + uint32_t(rounded)));
  }

  static float decode(uint16_t bits) {
    const uint32_t exponent = bits >> kFractionBits & ((1u << kExponentBits) - 1);
    const uint32_t fraction = bits & ((1u << kFractionBits) - 1);
    const uint32_t sign = uint32_t(bits >> 15) << 31;
    uint32_t result = fraction << (23 - kFractionBits);
    if (exponent == (1u << kExponentBits) - 1) {
      result |= 0x7f800000u;
    } else if (exponent > 0) {
      result |= (exponent + 127 - kBias) << 23;
    } else {
      const float tiny = ldexpf(float(fraction), 1 - kBias - kFractionBits);
      result = bit_copy<uint32_t>(tiny);
    }
    return bit_copy<float>(sign | result);
  }
};

// a * b + c for 16-bit operands, as a double that rounds to the right 16-bit number. The product is
// exact; where the sum is not, its last bit is set ("round to odd": Boldo and Melquiond 2008).
inline double fused(double a, double b, double c) {
  const double product = a * b, sum = product + c;
  const double of_c = sum - product, error = (product - (sum - of_c)) + (c - of_c);
  uint64_t bits = bit_copy<uint64_t>(sum);
  if (error == 0 || error != error || (bits & 1)) return sum;
  return bit_copy<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

}  // namespace cuemu

// Everything that half and bfloat16 have in common. T is the type, T2 its pair, and FORMAT the
// SmallFloat that encodes it.
#define CUEMU_SMALL_FLOAT(T, T2, FORMAT)                                                          \
  struct T {                                                                                      \
    unsigned short bits;                                                                          \
    T() = default;                                                                                \
    T(float x) : bits(FORMAT::encode(x)) {}                                                       \
    T(double x) : bits(FORMAT::encode(x)) {}                                                      \
    T(int x) : bits(FORMAT::encode(x)) {}                                                         \
    T(unsigned int x) : bits(FORMAT::encode(x)) {}                                                \
    T(long x) : bits(FORMAT::encode(double(x))) {}                                                \
    T(unsigned long x) : bits(FORMAT::encode(double(x))) {}                                       \
    T(long long x) : bits(FORMAT::encode(double(x))) {}                                           \
    T(unsigned long long x) : bits(FORMAT::encode(double(x))) {}                                  \
    operator float() const { return FORMAT::decode(bits); }                                       \
    T& operator+=(T other) { return *this = T(float(*this) + float(other)); }                     \
    T& operator-=(T other) { return *this = T(float(*this) - float(other)); }                     \
    T& operator*=(T other) { return *this = T(float(*this) * float(other)); }                     \
    T& operator/=(T other) { return *this = T(float(*this) / float(other)); }                     \
  };                                                                                              \
  struct alignas(4) T2 {                                                                          \
    T x, y;                                                                                       \
    T2() = default;                                                                               \
    T2(T x, T y) : x(x), y(y) {}                                                                  \
  };                                                                                              \
  static inline T operator+(T a, T b) { return T(float(a) + float(b)); }                          \
  static inline T operator-(T a, T b) { return T(float(a) - float(b)); }                          \
  static inline T operator*(T a, T b) { return T(float(a) * float(b)); }                          \
  static inline T operator/(T a, T b) { return T(float(a) / float(b)); }                          \
  static inline T operator-(T a) { return a.bits ^= 0x8000, a; }                                  \
  static inline bool operator==(T a, T b) { return float(a) == float(b); }                        \
  static inline bool operator!=(T a, T b) { return float(a) != float(b); }                        \
  static inline bool operator<(T a, T b) { return float(a) < float(b); }                          \
  static inline bool operator>(T a, T b) { return float(a) > float(b); }                          \
  static inline bool operator<=(T a, T b) { return float(a) <= float(b); }                        \
  static inline bool operator>=(T a, T b) { return float(a) >= float(b); }                        \
  static inline T __hadd(T a, T b) { return a + b; }                                              \
  static inline T __hsub(T a, T b) { return a - b; }                                              \
  static inline T __hmul(T a, T b) { return a * b; }                                              \
  static inline T __hdiv(T a, T b) { return a / b; }                                              \
  static inline T __hadd_rn(T a, T b) { return a + b; }                                           \
  static inline T __hsub_rn(T a, T b) { return a - b; }                                           \
  static inline T __hmul_rn(T a, T b) { return a * b; }                                           \
  static inline T __hfma(T a, T b, T c) { return T(cuemu::fused(float(a), float(b), float(c))); } \
  static inline T __hneg(T a) { return -a; }                                                      \
  static inline T __habs(T a) { return a.bits &= 0x7fff, a; }                                     \
  static inline T __hmin(T a, T b) { return T(fminf(a, b)); }                                     \
  static inline T __hmax(T a, T b) { return T(fmaxf(a, b)); }                                     \
  static inline bool __heq(T a, T b) { return a == b; }                                           \
  static inline bool __hne(T a, T b) { return a < b || a > b; }                                   \
  static inline bool __hlt(T a, T b) { return a < b; }                                            \
  static inline bool __hle(T a, T b) { return a <= b; }                                           \
  static inline bool __hgt(T a, T b) { return a > b; }                                            \
  static inline bool __hge(T a, T b) { return a >= b; }                                           \
  static inline bool __hisnan(T a) { return a != a; }                                             \
  static inline int __hisinf(T a) {                                                               \
    return __habs(a).bits != FORMAT::kInfinity ? 0 : a.bits & 0x8000 ? -1 : 1;                    \
  }                                                                                               \
  static inline T hsqrt(T a) { return T(sqrt(double(float(a)))); }                                \
  static inline T hrsqrt(T a) { return T(1.0 / sqrt(double(float(a)))); }                         \
  static inline T hrcp(T a) { return T(1.0 / double(float(a))); }                                 \
  static inline T hexp(T a) { return T(exp(double(float(a)))); }                                  \
  static inline T hexp2(T a) { return T(exp2(double(float(a)))); }                                \
  static inline T hlog(T a) { return T(log(double(float(a)))); }                                  \
  static inline T hlog2(T a) { return T(log2(double(float(a)))); }                                \
  static inline T hsin(T a) { return T(sin(double(float(a)))); }                                  \
  static inline T hcos(T a) { return T(cos(double(float(a)))); }                                  \
  static inline T htanh(T a) { return T(tanh(double(float(a)))); }                                \
  static inline T hfloor(T a) { return T(floorf(a)); }                                            \
  static inline T hceil(T a) { return T(ceilf(a)); }                                              \
  static inline T hrint(T a) { return T(rintf(a)); }                                              \
  static inline T htrunc(T a) { return T(truncf(a)); }                                            \
  static inline T2 operator+(T2 a, T2 b) { return {a.x + b.x, a.y + b.y}; }                       \
  static inline T2 operator-(T2 a, T2 b) { return {a.x - b.x, a.y - b.y}; }                       \
  static inline T2 operator*(T2 a, T2 b) { return {a.x * b.x, a.y * b.y}; }                       \
  static inline T2 operator/(T2 a, T2 b) { return {a.x / b.x, a.y / b.y}; }                       \
  static inline T2 operator-(T2 a) { return {-a.x, -a.y}; }                                       \
  static inline T2& operator+=(T2& a, T2 b) { return a = a + b; }                                 \
  static inline T2& operator-=(T2& a, T2 b) { return a = a - b; }                                 \
  static inline T2& operator*=(T2& a, T2 b) { return a = a * b; }                                 \
  static inline T2 __hadd2(T2 a, T2 b) { return a + b; }                                          \
  static inline T2 __hsub2(T2 a, T2 b) { return a - b; }                                          \
  static inline T2 __hmul2(T2 a, T2 b) { return a * b; }                                          \
  static inline T2 __h2div(T2 a, T2 b) { return a / b; }                                          \
  static inline T2 __hneg2(T2 a) { return -a; }                                                   \
  static inline T2 __habs2(T2 a) { return {__habs(a.x), __habs(a.y)}; }                           \
  static inline T2 __hfma2(T2 a, T2 b, T2 c) {                                                    \
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};                                        \
  }                                                                                               \
  static inline T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }           \
  static inline T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }           \
  static inline T2 h2exp(T2 a) { return {hexp(a.x), hexp(a.y)}; }                                 \
  static inline T2 h2log(T2 a) { return {hlog(a.x), hlog(a.y)}; }                                 \
  static inline T2 h2sqrt(T2 a) { return {hsqrt(a.x), hsqrt(a.y)}; }                              \
  static inline T2 h2rsqrt(T2 a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }
