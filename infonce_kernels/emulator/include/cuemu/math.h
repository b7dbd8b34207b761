// Mathematical functions and intrinsics. The fast ones (__expf and the like) are computed as well as
// the plain ones: the emulator shows what a kernel computes, not how a special function unit rounds.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "interface.h"

// ---- minimum and maximum -----------------------------------------------------------------------
// For each pair of types that CUDA knows; floating ones ignore a NaN, as fminf and fmaxf do.
#define CUEMU_MIN_MAX(A, B, R)                  \
  static inline constexpr R min(A a, B b) {     \
    const R x = a, y = b;                       \
    return y < x ? y : x;                       \
  }                                             \
  static inline constexpr R max(A a, B b) {     \
    const R x = a, y = b;                       \
    return x < y ? y : x;                       \
  }
#define CUEMU_MIN_MAX_SIGNS(S, U) \
  CUEMU_MIN_MAX(S, S, S) CUEMU_MIN_MAX(U, U, U) CUEMU_MIN_MAX(S, U, U) CUEMU_MIN_MAX(U, S, U)
CUEMU_MIN_MAX_SIGNS(int, unsigned int)
CUEMU_MIN_MAX_SIGNS(long, unsigned long)
CUEMU_MIN_MAX_SIGNS(long long, unsigned long long)
#undef CUEMU_MIN_MAX_SIGNS
#undef CUEMU_MIN_MAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(float a, double b) { return fmin(a, b); }
static inline double max(float a, double b) { return fmax(a, b); }
static inline double min(double a, float b) { return fmin(a, b); }
static inline double max(double a, float b) { return fmax(a, b); }
static inline unsigned int umin(unsigned int a, unsigned int b) { return b < a ? b : a; }
static inline unsigned int umax(unsigned int a, unsigned int b) { return a < b ? b : a; }

// ---- functions that the C library lacks --------------------------------------------------------
// Templates, because newer C libraries have some of them: the library's function then wins.
#define CUEMU_UNARY(NAME, T, EXPRESSION) \
  template <class X>                     \
  inline T NAME(X argument) {            \
    const T x = T(argument);             \
    return EXPRESSION;                   \
  }
CUEMU_UNARY(rsqrtf, float, 1.0f / sqrtf(x))
CUEMU_UNARY(rsqrt, double, 1.0 / sqrt(x))
static inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
CUEMU_UNARY(rcbrtf, float, 1.0f / cbrtf(x))
CUEMU_UNARY(rcbrt, double, 1.0 / cbrt(x))
CUEMU_UNARY(sinpif, float, float(sin(M_PI * fmod(double(x), 2.0))))
CUEMU_UNARY(cospif, float, float(cos(M_PI * fmod(double(x), 2.0))))
CUEMU_UNARY(sinpi, double, sin(M_PI * fmod(x, 2.0)))
CUEMU_UNARY(cospi, double, cos(M_PI * fmod(x, 2.0)))
CUEMU_UNARY(normcdff, float, 0.5f * erfcf(-x * float(M_SQRT1_2)))
CUEMU_UNARY(normcdf, double, 0.5 * erfc(-x * M_SQRT1_2))
#undef CUEMU_UNARY

static inline float fdividef(float a, float b) { return a / b; }
static inline float norm3df(float a, float b, float c) { return sqrtf(a * a + b * b + c * c); }
static inline float rnorm3df(float a, float b, float c) { return 1.0f / norm3df(a, b, c); }
static inline float norm4df(float a, float b, float c, float d) {
  return sqrtf(a * a + b * b + c * c + d * d);
}
static inline float rnorm4df(float a, float b, float c, float d) {
  return 1.0f / norm4df(a, b, c, d);
}

// ---- fast intrinsics ---------------------------------------------------------------------------
// Macros, because the C library's headers reserve these names for themselves.
#define __expf(x) (::expf(x))
#define __exp10f(x) (::exp10f(x))
#define __logf(x) (::logf(x))
#define __log2f(x) (::log2f(x))
#define __log10f(x) (::log10f(x))
#define __powf(x, y) (::powf(x, y))
#define __sinf(x) (::sinf(x))
#define __cosf(x) (::cosf(x))
#define __tanf(x) (::tanf(x))
#define __sincosf(x, s, c) (::sincosf(x, s, c))

static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
static inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }

// Arithmetic that is never fused into a multiply-add. A volatile variable hides the
// result from the compiler.
namespace cuemu {
template <class T>
inline T not_fused(T x) {
  volatile T kept = x;
  return kept;
}
}  // namespace cuemu
#define CUEMU_ROUNDED(PREFIX, T)                                                                 \
  static inline T PREFIX##add_rn(T a, T b) { return cuemu::not_fused(a + b); }                   \
  static inline T PREFIX##sub_rn(T a, T b) { return cuemu::not_fused(a - b); }                   \
  static inline T PREFIX##mul_rn(T a, T b) { return cuemu::not_fused(a * b); }                   \
  static inline T PREFIX##div_rn(T a, T b) { return a / b; }                                     \
  static inline T PREFIX##rcp_rn(T a) { return T(1) / a; }
CUEMU_ROUNDED(__f, float)
CUEMU_ROUNDED(__d, double)
#undef CUEMU_ROUNDED
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

// ---- conversions -------------------------------------------------------------------------------
// Rounding: _rn to nearest even, _rz towards zero, _ru up, _rd down. Values out of range saturate
// and a NaN gives 0, as the hardware's conversion does.
namespace cuemu {

template <class Integer>
inline Integer saturate(double x) {
  constexpr bool is_signed = Integer(-1) < Integer(0);
  constexpr Integer highest =
      is_signed ? Integer((uint64_t(1) << (8 * sizeof(Integer) - 1)) - 1) : Integer(-1);
  constexpr Integer lowest = is_signed ? Integer(-highest - 1) : Integer(0);
  if (x != x) return 0;
  if (x >= double(highest)) return highest;
  if (x <= double(lowest)) return lowest;
  return static_cast<Integer>(x);
}

template <class To, class From>
inline To bit_copy(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace cuemu

#define CUEMU_TO_INTEGER(NAME, FROM, TO)                                                        \
  static inline TO NAME##_rn(FROM x) { return cuemu::saturate<TO>(nearbyint(double(x))); }      \
  static inline TO NAME##_rz(FROM x) { return cuemu::saturate<TO>(trunc(double(x))); }          \
  static inline TO NAME##_ru(FROM x) { return cuemu::saturate<TO>(ceil(double(x))); }           \
  static inline TO NAME##_rd(FROM x) { return cuemu::saturate<TO>(floor(double(x))); }
CUEMU_TO_INTEGER(__float2int, float, int)
CUEMU_TO_INTEGER(__float2uint, float, unsigned int)
CUEMU_TO_INTEGER(__float2ll, float, long long)
CUEMU_TO_INTEGER(__float2ull, float, unsigned long long)
CUEMU_TO_INTEGER(__double2int, double, int)
CUEMU_TO_INTEGER(__double2uint, double, unsigned int)
CUEMU_TO_INTEGER(__double2ll, double, long long)
CUEMU_TO_INTEGER(__double2ull, double, unsigned long long)
#undef CUEMU_TO_INTEGER

static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(unsigned int x) { return float(x); }
static inline float __ll2float_rn(long long x) { return float(x); }
static inline float __ull2float_rn(unsigned long long x) { return float(x); }
static inline double __int2double_rn(int x) { return x; }
static inline double __uint2double_rn(unsigned int x) { return x; }
static inline double __ll2double_rn(long long x) { return double(x); }
static inline double __ull2double_rn(unsigned long long x) { return double(x); }
static inline float __double2float_rn(double x) { return float(x); }

static inline int __float_as_int(float x) { return cuemu::bit_copy<int>(x); }
static inline unsigned int __float_as_uint(float x) { return cuemu::bit_copy<unsigned int>(x); }
static inline float __int_as_float(int x) { return cuemu::bit_copy<float>(x); }
static inline float __uint_as_float(unsigned int x) { return cuemu::bit_copy<float>(x); }
static inline long long __double_as_longlong(double x) { return cuemu::bit_copy<long long>(x); }
static inline double __longlong_as_double(long long x) { return cuemu::bit_copy<double>(x); }
static inline int __double2hiint(double x) { return int(__double_as_longlong(x) >> 32); }
static inline int __double2loint(double x) { return int(__double_as_longlong(x)); }
static inline double __hiloint2double(int high, int low) {
  return __longlong_as_double((long long)(uint64_t(uint32_t(high)) << 32 | uint32_t(low)));
}

// ---- integers ----------------------------------------------------------------------------------
static inline int __popc(unsigned int x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned long long __brevll(unsigned long long x) {
  unsigned long long reversed = 0;
  for (int i = 0; i < 64; ++i) reversed |= (x >> i & 1) << (63 - i);
  return reversed;
}
static inline unsigned int __brev(unsigned int x) { return unsigned(__brevll(x) >> 32); }
static inline int __mul24(int a, int b) { return ((a << 8) >> 8) * ((b << 8) >> 8); }
static inline unsigned int __umul24(unsigned int a, unsigned int b) {
  return (a & 0xffffff) * (b & 0xffffff);
}
static inline int __mulhi(int a, int b) { return int((int64_t(a) * b) >> 32); }
static inline unsigned int __umulhi(unsigned int a, unsigned int b) {
  return unsigned((uint64_t(a) * b) >> 32);
}
static inline long long __mul64hi(long long a, long long b) {
  return (long long)((static_cast<__int128>(a) * b) >> 64);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((static_cast<unsigned __int128>(a) * b) >> 64);
}
static inline int __hadd(int a, int b) { return int((int64_t(a) + b) >> 1); }
static inline int __rhadd(int a, int b) { return int((int64_t(a) + b + 1) >> 1); }
static inline unsigned int __uhadd(unsigned int a, unsigned int b) {
  return unsigned((uint64_t(a) + b) >> 1);
}
static inline unsigned int __sad(int a, int b, unsigned int c) {
  return unsigned(a < b ? int64_t(b) - a : int64_t(a) - b) + c;
}
static inline unsigned int __usad(unsigned int a, unsigned int b, unsigned int c) {
  return (a < b ? b - a : a - b) + c;
}
static inline unsigned int __funnelshift_l(unsigned int low, unsigned int high, unsigned int shift) {
  return unsigned(((uint64_t(high) << 32 | low) << (shift & 31)) >> 32);
}
static inline unsigned int __funnelshift_r(unsigned int low, unsigned int high, unsigned int shift) {
  return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
static inline unsigned int __byte_perm(unsigned int low, unsigned int high, unsigned int selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  unsigned int result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned int pick = selector >> (4 * i) & 15;
    unsigned int byte = unsigned(bytes >> (8 * (pick & 7))) & 255;
    if (pick & 8) byte = byte & 128 ? 255 : 0;  // replicate the sign
    result |= byte << (8 * i);
  }
  return result;
}
static inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += int8_t(a >> (8 * i)) * int8_t(b >> (8 * i));
  return c;
}
static inline unsigned int __dp4a(unsigned int a, unsigned int b, unsigned int c) {
  for (int i = 0; i < 4; ++i) c += (a >> (8 * i) & 255) * (b >> (8 * i) & 255);
  return c;
}

// ---- loads and stores with a cache hint --------------------------------------------------------
#define CUEMU_LOAD(NAME) \
  template <class T>     \
  inline T NAME(const T* address) { return *address; }
CUEMU_LOAD(__ldg)
CUEMU_LOAD(__ldca)
CUEMU_LOAD(__ldcg)
CUEMU_LOAD(__ldcs)
CUEMU_LOAD(__ldlu)
#undef CUEMU_LOAD
template <class T>
inline T __ldcv(const T* address) {
  return *const_cast<const volatile T*>(address);
}
#define CUEMU_STORE(NAME) \
  template <class T>      \
  inline void NAME(T* address, T value) { *address = value; }
CUEMU_STORE(__stwb)
CUEMU_STORE(__stcg)
CUEMU_STORE(__stcs)
CUEMU_STORE(__stwt)
#undef CUEMU_STORE

// ---- time --------------------------------------------------------------------------------------
// Nanoseconds stand for clock cycles.
static inline long long clock64() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}
