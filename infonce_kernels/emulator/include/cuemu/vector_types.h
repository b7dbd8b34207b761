// CUDA's built-in vector types, with CUDA's alignments: float4 is one 16-byte access.
#pragma once

#define CUEMU_VECTOR(NAME, T, ALIGN2, ALIGN4)                                      \
  struct NAME##1 { T x; };                                                         \
  struct alignas(ALIGN2) NAME##2 { T x, y; };                                      \
  struct NAME##3 { T x, y, z; };                                                   \
  struct alignas(ALIGN4) NAME##4 { T x, y, z, w; };                                \
  static inline constexpr NAME##1 make_##NAME##1(T x) { return {x}; }              \
  static inline constexpr NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }      \
  static inline constexpr NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; } \
  static inline constexpr NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

CUEMU_VECTOR(char, signed char, 2, 4)
CUEMU_VECTOR(uchar, unsigned char, 2, 4)
CUEMU_VECTOR(short, short, 4, 8)
CUEMU_VECTOR(ushort, unsigned short, 4, 8)
CUEMU_VECTOR(int, int, 8, 16)
CUEMU_VECTOR(uint, unsigned int, 8, 16)
CUEMU_VECTOR(long, long, 16, 16)
CUEMU_VECTOR(ulong, unsigned long, 16, 16)
CUEMU_VECTOR(longlong, long long, 16, 16)
CUEMU_VECTOR(ulonglong, unsigned long long, 16, 16)
CUEMU_VECTOR(float, float, 8, 16)
CUEMU_VECTOR(double, double, 16, 16)
#undef CUEMU_VECTOR

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
