// What a kernel of wgmma calls on the CPU: the instructions of sm_90a that its helpers wrap (hopper_on_cpu.cc).
//
// Addresses of shared memory are a block's rank in its cluster, shifted by 24, and an offset.
#pragma once
#include "cuda_types.h"

#define __grid_constant__
struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };
typedef struct CUtensorMap_st CUtensorMap;

extern Index threadIdx, blockIdx;

namespace hopper {
// A kernel of a call; `dependent`: it may start before the one ahead has ended.
struct Launch {
  int grid, threads, cluster, shared_bytes, dependent;
  void** arguments;
};
using Kernel = void (*)(void** arguments);
// 0: ended; 1: stuck, no thread can go on; 2: what the memory model forbids, which `message` says.
int run(const Launch* launches, const Kernel* kernels, int count, unsigned seed, char* message);

unsigned char* shared();
uint32_t to_shared(const void* pointer);
uint32_t rank();
void sync_warp();
void bar_sync(int name, int count);  // count 0: the whole block
void cluster_arrive(bool release);
void cluster_wait();

void barrier_init(uint32_t at, uint32_t count);
void barrier_arrive(uint32_t at, uint32_t count);
void barrier_expect(uint32_t at, uint32_t bytes);
void barrier_wait(uint32_t at, int parity);
void fence_proxy();
void fence_init();

void tma_load(uint32_t to, const void* map, int x, int y, int z, uint32_t barrier, int mask);  // mask -1: this block
void tma_store(const void* map, int x, int y, int z, uint32_t from);
void bulk_commit();
void bulk_wait(int pending);
void cp_async(uint32_t to, const void* from, int bytes, int read);
void cp_async_arrive(uint32_t barrier);

void wgmma(void* sums, int n, bool half_sums, bool bf16, bool across_a, bool across_b, uint64_t a, uint64_t b,
           bool adds);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int pending);

void stmatrix(uint32_t to, int count, bool across, uint32_t a, uint32_t b, uint32_t c = 0, uint32_t d = 0);
void store_shared(uint32_t to, float a, float b, float c, float d);
void store_words(uint32_t to, uint32_t a, uint32_t b);
void store_floats(uint32_t to, float a, float b);
void store_float(uint32_t to, float a);
void load_cluster(float& a, float& b, float& c, float& d, uint32_t from);
void launch_dependents();
void wait_for_kernel();

uint64_t clock();  // one for the whole GPU, later at every read
uint32_t sm();     // each block has one of its own

template <typename T>
inline uint32_t packed(float low, float high) {
  return (uint32_t)T(low).bits | (uint32_t)T(high).bits << 16;
}

// x / y and x % y as `x /by* y` and `x /rest* y`: nothing comes to pass where y is 0, which a GPU survives.
struct By {};
struct Rest {};
constexpr By by;
constexpr Rest rest;
template <typename T, typename Kind>
struct Divided { T value; };
template <typename T>
inline Divided<T, By> operator/(T value, By) { return {value}; }
template <typename T>
inline Divided<T, Rest> operator/(T value, Rest) { return {value}; }
template <typename T, typename U>
inline auto operator*(Divided<T, By> left, U right) {
  using Common = decltype(left.value / right);
  if constexpr (std::is_integral_v<Common>) return right == 0 ? Common(-1) : Common(left.value / right);
  else return left.value / right;
}
template <typename T, typename U>
inline auto operator*(Divided<T, Rest> left, U right) {
  using Common = decltype(left.value % right);
  return right == 0 ? Common(-1) : Common(left.value % right);
}
}  // namespace hopper

inline uint32_t __cvta_generic_to_shared(const void* pointer) { return hopper::to_shared(pointer); }
inline void __syncthreads() { hopper::bar_sync(0, 0); }
inline void __syncwarp() { hopper::sync_warp(); }
// Only of what is the same in all lanes of a warp.
inline int __shfl_sync(unsigned, int value, int, int) { return value; }
template <typename T>
inline T __ldg(const T* from) { return *from; }
