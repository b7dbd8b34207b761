// Mathematical functions, intrinsics, vector types and half types, one value a thread.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math_constants.h>

#define UNARY(name, type, expression)                                       \
  __global__ void kernel_##name(const type* a, type* o, int n) {            \
    const int i = blockIdx.x * blockDim.x + threadIdx.x;                    \
    if (i < n) { const type x = a[i]; o[i] = expression; }                  \
  }                                                                         \
  extern "C" int name(const type* a, type* o, int n) {                      \
    kernel_##name<<<(n + 127) / 128, 128>>>(a, o, n);                       \
    return cudaGetLastError();                                              \
  }
UNARY(f_exp, float, expf(x))
UNARY(f_fast_exp, float, __expf(x))
UNARY(f_exp2, float, exp2f(x))
UNARY(f_exp10, float, exp10f(x))
UNARY(f_expm1, float, expm1f(x))
UNARY(f_log, float, logf(x))
UNARY(f_fast_log, float, __logf(x))
UNARY(f_fast_log2, float, __log2f(x))
UNARY(f_log1p, float, log1pf(x))
UNARY(f_sqrt, float, sqrtf(x))
UNARY(f_rsqrt, float, rsqrtf(x))
UNARY(f_rsqrt_overload, float, rsqrt(x))
UNARY(f_rcbrt, float, rcbrtf(x))
UNARY(f_rcp, float, __frcp_rn(x))
UNARY(f_sin, float, __sinf(x))
UNARY(f_cos, float, cosf(x))
UNARY(f_tanh, float, tanhf(x))
UNARY(f_erf, float, erff(x))
UNARY(f_sinpi, float, sinpif(x))
UNARY(f_normcdf, float, normcdff(x))
UNARY(f_pow, float, __powf(x, 1.5f))
UNARY(f_fdividef, float, __fdividef(1.0f, x))
UNARY(f_saturate, float, __saturatef(x))
UNARY(f_fma, float, __fmaf_rn(x, x, -1.0f))
UNARY(f_not_fused, float, __fadd_rn(__fmul_rn(x, x), -1.0f))
UNARY(d_exp, double, exp(x))
UNARY(d_rsqrt, double, rsqrt(x))

__global__ void sincos_kernel(const float* a, float* s, float* c, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) sincosf(a[i], &s[i], &c[i]);
}
extern "C" int f_sincos(const float* a, float* s, float* c, int n) {
  sincos_kernel<<<1, 32>>>(a, s, c, n);
  return cudaGetLastError();
}

__global__ void minima(double* o) {
  const float nan = CUDART_NAN_F;
  int k = 0;
  o[k++] = fminf(nan, 1.f); o[k++] = fmaxf(1.f, nan); o[k++] = min(2.f, nan); o[k++] = max(nan, 2.0);
  o[k++] = fmaxf(nan, nan); o[k++] = max(-1, 1u); o[k++] = min(-1, 1); o[k++] = max(3, 4);
  o[k++] = min(1ll << 40, -(1ll << 41)); o[k++] = max(1.5f, 2.5); o[k++] = fmaxf(-CUDART_INF_F, -3.f); o[k++] = abs(-2.5f);
}
extern "C" int run_minima(double* o) { minima<<<1, 1>>>(o); return cudaGetLastError(); }

__global__ void integers(long long* o) {
  int k = 0;
  o[k++] = __popc(0xf0f0u); o[k++] = __popcll(~0ull); o[k++] = __clz(1); o[k++] = __clz(0); o[k++] = __clzll(1ll << 40);
  o[k++] = __ffs(8); o[k++] = __ffs(0); o[k++] = __ffsll(1ll << 40); o[k++] = __brev(1u); o[k++] = __brevll(2ull) >> 60;
  o[k++] = __mulhi(1 << 20, 1 << 20); o[k++] = __umulhi(~0u, ~0u); o[k++] = __mul64hi(1ll << 40, -(1ll << 40)); o[k++] = __mul24(-3, 5);
  o[k++] = __byte_perm(0x33221100u, 0x77665544u, 0x7210u); o[k++] = __funnelshift_l(0x80000000u, 1u, 1); o[k++] = __funnelshift_r(0u, 1u, 4);
  o[k++] = __sad(-5, 7, 1); o[k++] = __dp4a(0x01020304, 0x01010101, 10); o[k++] = __hadd(3, 4); o[k++] = __rhadd(3, 4);
  o[k++] = __float_as_int(1.0f); o[k++] = __float_as_uint(-0.0f); o[k++] = (long long)__int_as_float(0x40490fdb); o[k++] = __double_as_longlong(1.0);
  o[k++] = __float2int_rn(2.5f); o[k++] = __float2int_rn(3.5f); o[k++] = __float2int_rz(-2.7f); o[k++] = __float2int_ru(2.1f); o[k++] = __float2int_rd(-2.1f);
  o[k++] = __float2int_rn(1e20f); o[k++] = __float2int_rn(CUDART_NAN_F); o[k++] = __float2uint_rz(-3.f); o[k++] = __double2ll_rn(-1e300);
  o[k++] = __hiloint2double(0x3ff00000, 0) == 1.0; o[k++] = __double2hiint(1.0); o[k++] = clock64() > 0;
}
extern "C" int run_integers(long long* o) { integers<<<1, 1>>>(o); return cudaGetLastError(); }

// Each vector type: its size, its alignment, and make_ of it.
#define SIZES(name, value) \
  o[k++] = sizeof(name); o[k++] = alignof(name); o[k++] = int(value);
__global__ void vectors(int* o) {
  int k = 0;
  SIZES(char4, make_char4(1, 2, 3, 4).w) SIZES(uchar4, make_uchar4(1, 2, 3, 4).z) SIZES(short2, make_short2(1, 2).y) SIZES(ushort4, make_ushort4(1, 2, 3, 4).w)
  SIZES(int2, make_int2(1, 2).y) SIZES(int3, make_int3(1, 2, 3).z) SIZES(int4, make_int4(1, 2, 3, 4).w) SIZES(uint2, make_uint2(1, 2).x)
  SIZES(uint3, make_uint3(1, 2, 3).z) SIZES(uint4, make_uint4(1, 2, 3, 4).y) SIZES(float2, make_float2(1, 2).y) SIZES(float3, make_float3(1, 2, 3).z)
  SIZES(float4, make_float4(1, 2, 3, 4).w) SIZES(double2, make_double2(1, 2).y) SIZES(longlong2, make_longlong2(1, 2).x) SIZES(ulonglong2, make_ulonglong2(1, 2).y)
  SIZES(dim3, dim3(4, 5).z)
}
extern "C" int run_vectors(int* o) { vectors<<<1, 1>>>(o); return cudaGetLastError(); }

// Cached loads and stores, plain and vector.
__global__ void cached(const float4* a, float4* o) {
  const int i = threadIdx.x;
  float4 v = __ldg(a + i);
  v.x += __ldcg(&a[i].x) + __ldcs(&a[i].x) + __ldca(&a[i].x) + __ldlu(&a[i].x) + __ldcv(&a[i].x);
  if (i % 2) __stcg(o + i, v); else __stcs(o + i, v);
}
extern "C" int run_cached(const float* a, float* o) {
  cached<<<1, 32>>>(reinterpret_cast<const float4*>(a), reinterpret_cast<float4*>(o));
  return cudaGetLastError();
}

// A product and a sum in one expression become one fused multiply-add, as nvcc makes it.
UNARY(contracted, float, x * x - 1.0f)

// ---- half types --------------------------------------------------------------------------------
#define SMALL(prefix, type, pair, to, from)                                                                             \
  __global__ void prefix##_decode_kernel(const type* a, float* o) { const int i = blockIdx.x * 256 + threadIdx.x; o[i] = from(a[i]); } \
  extern "C" int prefix##_decode(const type* a, float* o) { prefix##_decode_kernel<<<256, 256>>>(a, o); return cudaGetLastError(); }   \
  __global__ void prefix##_encode_kernel(const float* a, type* o, int n) { const int i = blockIdx.x * 256 + threadIdx.x; if (i < n) o[i] = to(a[i]); } \
  extern "C" int prefix##_encode(const float* a, type* o, int n) { prefix##_encode_kernel<<<(n + 255) / 256, 256>>>(a, o, n); return cudaGetLastError(); } \
  __global__ void prefix##_arithmetic_kernel(const type* a, const type* b, const type* c, type* o, int n) {            \
    const int i = blockIdx.x * 256 + threadIdx.x;                                                                       \
    if (i >= n) return;                                                                                                 \
    o[i] = a[i] + b[i]; o[n + i] = __hsub(a[i], b[i]); o[2 * n + i] = a[i] * b[i]; o[3 * n + i] = a[i] / b[i];          \
    o[4 * n + i] = __hfma(a[i], b[i], c[i]); o[5 * n + i] = hsqrt(__habs(a[i])); o[6 * n + i] = __hmax(a[i], b[i]);     \
    const pair p = pair{a[i], b[i]} * pair{b[i], c[i]};                                                                 \
    o[7 * n + i] = p.x; o[8 * n + i] = p.y;                                                                             \
    type s = -a[i]; s += c[i]; o[9 * n + i] = s;                                                                        \
  }                                                                                                                     \
  extern "C" int prefix##_arithmetic(const type* a, const type* b, const type* c, type* o, int n) { prefix##_arithmetic_kernel<<<(n + 255) / 256, 256>>>(a, b, c, o, n); return cudaGetLastError(); } \
  __global__ void prefix##_sum_kernel(const type* a, type* o, int n) {                                                  \
    __shared__ type s[32];                                                                                              \
    type v = a[threadIdx.x];                                                                                            \
    for (int d = 16; d > 0; d /= 2) v = v + __shfl_xor_sync(0xffffffffu, v, d);                                         \
    s[threadIdx.x] = v;                                                                                                 \
    __syncthreads();                                                                                                    \
    atomicAdd(o, s[31 - threadIdx.x] > a[0] ? to(1.0f) : to(0.0f));                                                     \
    o[1] = s[0];                                                                                                        \
  }                                                                                                                     \
  extern "C" int prefix##_sum(const type* a, type* o) { prefix##_sum_kernel<<<1, 32>>>(a, o, 32); return cudaGetLastError(); }
SMALL(half, __half, __half2, __float2half, __half2float)
SMALL(bfloat, __nv_bfloat16, __nv_bfloat162, __float2bfloat16, __bfloat162float)
