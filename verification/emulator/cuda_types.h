// CUDA's types, words and conversions as g++ takes them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(4) ushort2 { unsigned short x, y; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };
struct alignas(16) longlong4 { long long x, y, z, w; };
struct alignas(16) ulonglong4 { unsigned long long x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// fp16 by its bits, rounded to nearest even, as the device's conversions do.
struct half {
  uint16_t bits = 0;
  half() = default;
  half(float value) {
    uint32_t f;
    memcpy(&f, &value, 4);
    const uint32_t sign = (f >> 16) & 0x8000, exponent = (f >> 23) & 0xff;
    if (exponent == 0xff) { bits = sign | 0x7c00 | ((f & 0x7fffff) ? 0x200 : 0); return; }
    // Scaled so that the rounding of fp32 addition falls on the last bit of fp16.
    const float magnitude = std::fabs(value);
    if (magnitude >= 65520.0f) { bits = sign | 0x7c00; return; }
    int power;
    std::frexp(magnitude, &power);
    const float unit = std::ldexp(1.0f, std::max(power - 11, -24));
    const float rounded = std::nearbyint(magnitude / unit) * unit;
    std::frexp(rounded, &power);
    const int biased = rounded < std::ldexp(1.0f, -14) ? 0 : power + 14;
    const float scale = std::ldexp(1.0f, biased ? 25 - biased : 24);
    bits = sign | (biased << 10) | ((int)(rounded * scale) & 0x3ff);
  }
  operator float() const {
    const int exponent = (bits >> 10) & 31, mantissa = bits & 0x3ff;
    float value = exponent ? std::ldexp(1024.0f + mantissa, exponent - 25) : std::ldexp((float)mantissa, -24);
    if (exponent == 31) value = mantissa ? NAN : INFINITY;
    return bits & 0x8000 ? -value : value;
  }
};
using __half = half;
struct half2 { half x, y; };
inline half2 make_half2(half x, half y) { return {x, y}; }
using __half2 = half2;
inline float __half2float(half value) { return value; }
inline bool __hgt(half a, half b) { return (float)a > (float)b; }
inline bool __hlt(half a, half b) { return (float)a < (float)b; }
inline half __float2half(float value) { return half(value); }
inline half __float2half_rn(float value) { return half(value); }

// bf16 by its bits.
struct nv_bfloat16 {
  uint16_t bits = 0;
  nv_bfloat16() = default;
  nv_bfloat16(float value) {
    uint32_t f;
    memcpy(&f, &value, 4);
    bits = value != value ? 0x7fff : (f + 0x7fff + ((f >> 16) & 1)) >> 16;
  }
  operator float() const {
    const uint32_t f = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &f, 4);
    return value;
  }
};
using __nv_bfloat16 = nv_bfloat16;
struct nv_bfloat162 {
  nv_bfloat16 x, y;
  nv_bfloat162() = default;
  nv_bfloat162(nv_bfloat16 x, nv_bfloat16 y) : x(x), y(y) {}
};
using __nv_bfloat162 = nv_bfloat162;
inline bool __hgt(nv_bfloat16 a, nv_bfloat16 b) { return (float)a > (float)b; }
inline bool __hlt(nv_bfloat16 a, nv_bfloat16 b) { return (float)a < (float)b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __bfloat162float(nv_bfloat16 value) { return value; }
inline nv_bfloat16 __float2bfloat16(float value) { return nv_bfloat16(value); }
inline nv_bfloat16 __float2bfloat16_rn(float value) { return nv_bfloat16(value); }

// Two ulp beside the rounded value, as far as CUDA's manual lets the device's be: up or down by the argument's last
// bit.
inline float rsqrt_two_ulp_off(float value) {
  float root = (float)(1.0 / std::sqrt((double)value));
  if (!(root > 0 && root < INFINITY)) return root;
  uint32_t argument, f;
  memcpy(&argument, &value, 4);
  memcpy(&f, &root, 4);
  f += argument & 1 ? 2 : -2;
  memcpy(&root, &f, 4);
  return root;
}
// glibc may have a function of this name.
#define rsqrtf rsqrt_two_ulp_off

struct Index { int x = 0, y = 0, z = 0; };
