// CUDA C++ as g++ takes it: every thread of a block is a fiber, __syncthreads() hands over to the next one.
//
// Fibers run one after the other from barrier to barrier, in an order that the caller picks: where a barrier is missing,
// some order reads what is not there yet. cp.async copies at once or at the last moment, when it is waited for. Threads
// of one block that do not all reach the same number of barriers are an error. The lanes of a warp meet before and after
// what they do together: ldmatrix and mma.sync.
#pragma once
#include <ucontext.h>

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
inline float __bfloat162float(nv_bfloat16 value) { return value; }
inline nv_bfloat16 __float2bfloat16(float value) { return nv_bfloat16(value); }
inline nv_bfloat16 __float2bfloat16_rn(float value) { return nv_bfloat16(value); }

struct Index { int x = 0, y = 0, z = 0; };
static Index threadIdx, blockIdx;
static constexpr size_t shared_capacity = 227 * 1024;
extern "C++" { alignas(128) unsigned char buf_dyn_shmem_ptr[shared_capacity]; }

struct Copy { void* to; const void* from; size_t bytes; };

struct Fiber {
  ucontext_t context;
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
  std::vector<Copy> open;
  int barriers = 0;   // of the block, reached so far
  int meetings = 0;   // of the warp
  enum { runs, at_barrier, at_meeting } waiting = runs;
  bool finished = false;
};

static std::vector<Fiber> fibers;
static constexpr size_t stack_bytes = 256 * 1024;
static std::vector<std::unique_ptr<char[]>> stacks;  // of the fibers, from block to block
static ucontext_t scheduler;
static int running;
static bool eager;
static std::function<void()> body;

// How many threads have reached each barrier of the block; how many lanes each meeting of their warp.
static std::vector<int> barrier_arrivals;
static std::vector<std::vector<int>> meeting_arrivals;

inline int arrive(std::vector<int>& arrivals, int number) {
  if ((int)arrivals.size() <= number) arrivals.resize(number + 1);
  return ++arrivals[number];
}

inline void __syncthreads() {
  Fiber& fiber = fibers[running];
  arrive(barrier_arrivals, fiber.barriers++);
  fiber.waiting = Fiber::at_barrier;
  swapcontext(&fiber.context, &scheduler);
}

inline void meet_warp() {
  Fiber& fiber = fibers[running];
  if (arrive(meeting_arrivals[running / 32], fiber.meetings++) == 32) return;  // the last lane goes on
  fiber.waiting = Fiber::at_meeting;
  swapcontext(&fiber.context, &scheduler);
}

inline void __syncwarp() { meet_warp(); }

static bool ready(int thread) {
  const Fiber& fiber = fibers[thread];
  if (fiber.finished) return false;
  if (fiber.waiting == Fiber::at_barrier) return barrier_arrivals[fiber.barriers - 1] == (int)fibers.size();
  if (fiber.waiting == Fiber::at_meeting) return meeting_arrivals[thread / 32][fiber.meetings - 1] == 32;
  return true;
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

inline void tirgemm_commit() { cp_async_commit(); }

inline void copy_or_zero(void* to, const void* from, size_t bytes, bool inside) {
  if (inside) cp_async(to, from, bytes);
  else memset(to, 0, bytes);
}

// What the lanes of a warp show each other.
static const void* shown[1024][2];

template <bool transposed>
inline void ldmatrix_x4(void* to, const void* from) {
  const int first = running / 32 * 32, lane = running % 32;
  shown[running][0] = from;
  meet_warp();
  uint16_t values[8];
  for (int v = 0; v < 8; v++) {
    const int across = lane / 4, along = lane % 4 * 2 + v % 2;
    const int row = transposed ? along : across, column = transposed ? across : along;
    values[v] = ((const uint16_t*)shown[first + v / 2 * 8 + row][0])[column];
  }
  meet_warp();
  memcpy(to, values, sizeof values);
}
inline void tirgemm_ldmatrix_x4(void* to, const void* from) { ldmatrix_x4<false>(to, from); }
inline void tirgemm_ldmatrix_x4_trans(void* to, const void* from) { ldmatrix_x4<true>(to, from); }

// mma.sync.m16n8k16: the fragments as the PTX manual draws them.
template <typename Input, typename Sum>
inline void mma_m16n8k16(void* sums, const void* left, const void* right) {
  const int first = running / 32 * 32, lane = running % 32;
  shown[running][0] = left;
  shown[running][1] = right;
  meet_warp();
  Sum found[4];
  for (int c = 0; c < 4; c++) {
    const int row = lane / 4 + c / 2 * 8, column = lane % 4 * 2 + c % 2;
    float total = ((const Sum*)sums)[c];
    for (int k = 0; k < 16; k++) {
      const Input* a = (const Input*)shown[first + row % 8 * 4 + k % 8 / 2][0];
      const Input* b = (const Input*)shown[first + column * 4 + k % 8 / 2][1];
      total += (float)a[row / 8 * 2 + k / 8 * 4 + k % 2] * (float)b[k / 8 * 2 + k % 2];
    }
    found[c] = Sum(total);
  }
  meet_warp();
  memcpy(sums, found, sizeof found);
}
inline void tirgemm_mma_f32_f16(void* d, const void* a, const void* b) { mma_m16n8k16<half, float>(d, a, b); }
inline void tirgemm_mma_f32_bf16(void* d, const void* a, const void* b) { mma_m16n8k16<nv_bfloat16, float>(d, a, b); }
inline void tirgemm_mma_f16_f16(void* d, const void* a, const void* b) { mma_m16n8k16<half, half>(d, a, b); }

static void enter() {
  body();
  fibers[running].finished = true;
}

// Runs one block; 0, or 1 where its threads part ways at a barrier.
static int run_block(int threads, const std::vector<int>& order) {
  memset(buf_dyn_shmem_ptr, 0xff, shared_capacity);  // NaN until written
  fibers = std::vector<Fiber>(threads);
  while ((int)stacks.size() < threads) stacks.emplace_back(new char[stack_bytes]);
  for (int thread = 0; thread < threads; thread++) {
    ucontext_t& context = fibers[thread].context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks[thread].get();
    context.uc_stack.ss_size = stack_bytes;
    context.uc_link = &scheduler;
    makecontext(&context, enter, 0);
  }
  barrier_arrivals.clear();
  meeting_arrivals.assign((threads + 31) / 32, {});
  for (bool moved = true; moved;) {
    moved = false;
    for (int thread : order) {
      if (!ready(thread)) continue;
      moved = true;
      running = thread;
      threadIdx.x = thread;
      fibers[thread].waiting = Fiber::runs;
      swapcontext(&scheduler, &fibers[thread].context);
    }
  }
  for (const Fiber& fiber : fibers)
    if (!fiber.finished || fiber.barriers != fibers[0].barriers) return 1;
  return 0;
}

// order 0: by number; 1: from the last; others: shuffled by that seed. Odd orders copy asynchronously at once.
static int run_grid(const int* grid, int threads, unsigned seed, std::function<void()> kernel) {
  const bool odd = seed & 1;
  std::vector<int> order(threads);
  for (int i = 0; i < threads; i++) order[i] = seed == 1 ? threads - 1 - i : i;
  for (int i = threads - 1; seed > 1 && i > 0; i--) std::swap(order[i], order[(seed = seed * 1664525u + 1013904223u) % (i + 1)]);
  eager = odd;
  body = std::move(kernel);
  int failed = 0;
  for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < grid[0] && !failed; blockIdx.x++) failed = run_block(threads, order);
  // The library stays loaded as long as the tests run.
  std::vector<Fiber>().swap(fibers);
  decltype(stacks)().swap(stacks);
  return failed;
}
