// CUDA C++ as g++ takes it: every thread of a block is a fiber, __syncthreads() hands over to the next one.
//
// Fibers run one after the other from barrier to barrier, in an order that the caller picks: where a barrier is
// missing, some order reads what is not there yet. cp.async copies at once or at the last moment, when it is waited
// for. Threads of one block that do not all reach the same number of barriers are an error. The lanes of a warp meet
// before and after what they do together: ldmatrix and mma.sync.
#pragma once
#include "cuda_types.h"

// What is the same for all kernels is compiled once, from cuda_on_cpu.cc.
#pragma GCC visibility push(hidden)
extern Index threadIdx, blockIdx;
static constexpr size_t shared_capacity = 227 * 1024;
extern unsigned char buf_dyn_shmem_ptr[shared_capacity];
extern int running;  // the thread whose turn it is

void __syncthreads();
void meet_warp();
inline void __syncwarp() { meet_warp(); }

void cp_async(void* to, const void* from, size_t bytes);
void cp_async_commit();
void cp_async_wait(size_t pending);
inline void tirgemm_commit() { cp_async_commit(); }

inline void copy_or_zero(void* to, const void* from, size_t bytes, bool inside) {
  if (inside) cp_async(to, from, bytes);
  else memset(to, 0, bytes);
}

// What the lanes of a warp show each other.
extern const void* shown[1024][2];

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

// Threads in an order; 1 where those of a block part ways at a barrier. Odd orders copy asynchronously at once.
int run_grid(const int* grid, int threads, unsigned seed, std::function<void()> kernel);

// Warps in an order, of which one after the other runs on alone, to the block's next barrier. In run_grid()'s own
// orders a warp whose lanes meet, for ldmatrix or mma.sync, is one meeting ahead of another at most.
int run_grid_warps_ahead(const int* grid, int threads, unsigned seed, std::function<void()> kernel);
#pragma GCC visibility pop
