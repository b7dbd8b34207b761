// Half precision (IEEE binary16: 5 exponent bits, 10 fraction bits).
#pragma once
#include "cuda_runtime.h"
#include "cuemu/small_float.h"

namespace cuemu {
using HalfFormat = SmallFloat<5, 10>;
}
CUEMU_SMALL_FLOAT(__half, __half2, cuemu::HalfFormat)
using half = __half;
using half2 = __half2;

static inline float __half2float(__half x) { return float(x); }
static inline __half __float2half(float x) { return __half(x); }
static inline __half __float2half_rn(float x) { return __half(x); }
static inline __half __double2half(double x) { return __half(x); }
static inline __half __int2half_rn(int x) { return __half(x); }
static inline int __half2int_rn(__half x) { return __float2int_rn(x); }
static inline int __half2int_rz(__half x) { return __float2int_rz(x); }
static inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
static inline __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
static inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
static inline float2 __half22float2(__half2 v) { return {float(v.x), float(v.y)}; }
static inline float __low2float(__half2 v) { return float(v.x); }
static inline float __high2float(__half2 v) { return float(v.y); }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }
static inline __half2 __half2half2(__half x) { return {x, x}; }
static inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
static inline __half2 make_half2(__half x, __half y) { return {x, y}; }
static inline __half2 __lowhigh2highlow(__half2 v) { return {v.y, v.x}; }
static inline unsigned short __half_as_ushort(__half x) { return x.bits; }
static inline short __half_as_short(__half x) { return short(x.bits); }
static inline __half __ushort_as_half(unsigned short bits) {
  return cuemu::bit_copy<__half>(bits);
}
static inline __half __short_as_half(short bits) { return cuemu::bit_copy<__half>(bits); }
