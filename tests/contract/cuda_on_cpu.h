// CUDA C++ as g++ takes it: every thread of a block is a fiber, __syncthreads() hands over to the next one.
//
// Fibers run one after the other from barrier to barrier, in an order that the caller picks: where a barrier is missing,
// some order reads what is not there yet. cp.async copies at once or at the last moment, when it is waited for. Threads
// of one block that do not all reach the same number of barriers are an error.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
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
using __half2 = half2;
inline float __half2float(half value) { return value; }
inline bool __hgt(half a, half b) { return (float)a > (float)b; }
inline bool __hlt(half a, half b) { return (float)a < (float)b; }
inline half __float2half(float value) { return half(value); }
inline half __float2half_rn(float value) { return half(value); }

struct Index { int x = 0, y = 0, z = 0; };
static Index threadIdx, blockIdx;
static constexpr size_t shared_capacity = 227 * 1024;
extern "C++" { alignas(128) unsigned char buf_dyn_shmem_ptr[shared_capacity]; }

struct Copy { void* to; const void* from; size_t bytes; };

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
  std::vector<Copy> open;
  int barriers = 0;
  bool finished = false;
};

static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static int running;
static bool eager;
static std::function<void()> body;

inline void __syncthreads() {
  fibers[running].barriers++;
  swapcontext(&fibers[running].context, &scheduler);
}

inline void cp_async(void* to, const void* from, size_t bytes) {
  if (eager) memcpy(to, from, bytes);
  fibers[running].open.push_back({to, from, bytes});
}

inline void cp_async_commit() {
  Fiber& fiber = fibers[running];
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}

inline void cp_async_wait(size_t pending) {
  auto& groups = fibers[running].groups;
  for (; groups.size() > pending; groups.erase(groups.begin()))
    for (const Copy& copy : groups.front())
      if (!eager) memcpy(copy.to, copy.from, copy.bytes);
}

static void enter() {
  body();
  fibers[running].finished = true;
}

// Runs one block; 0, or 1 where its threads part ways at a barrier.
static int run_block(int threads, const std::vector<int>& order) {
  memset(buf_dyn_shmem_ptr, 0xff, shared_capacity);  // NaN until written
  fibers = std::vector<Fiber>(threads);
  for (Fiber& fiber : fibers) {
    fiber.stack.resize(256 * 1024);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, enter, 0);
  }
  for (;;) {
    for (int thread : order) {
      running = thread;
      threadIdx.x = thread;
      swapcontext(&scheduler, &fibers[thread].context);
    }
    for (const Fiber& fiber : fibers)
      if (fiber.finished != fibers[0].finished || fiber.barriers != fibers[0].barriers) return 1;
    if (fibers[0].finished) return 0;
  }
}

// order 0: by number; 1: from the last; others: shuffled by that seed. Odd orders copy asynchronously at once.
static int run_grid(const int* grid, int threads, unsigned seed, std::function<void()> kernel) {
  const bool odd = seed & 1;
  std::vector<int> order(threads);
  for (int i = 0; i < threads; i++) order[i] = seed == 1 ? threads - 1 - i : i;
  for (int i = threads - 1; seed > 1 && i > 0; i--) std::swap(order[i], order[(seed = seed * 1664525u + 1013904223u) % (i + 1)]);
  eager = odd;
  body = std::move(kernel);
  for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++)
        if (run_block(threads, order)) return 1;
  return 0;
}
