// Orders of threads in which one warp after the other runs on alone, to the block's next barrier, for the emulator.
//
// In run_grid()'s own orders a warp whose lanes meet, for ldmatrix or mma.sync, is one meeting ahead of another at most.
#pragma once
#include <algorithm>
#include <numeric>

#include "cuda_on_cpu.h"

// Turns in a row that a warp gets: about as many as its lanes meet between two barriers.
static constexpr int turns_in_a_row = 256;

// As run_grid(). order 0: warps by number; 1: from the last; others: shuffled by that seed. Odd orders copy at once.
static int run_grid_warps_ahead(const int* grid, int threads, unsigned seed, std::function<void()> kernel) {
  eager = seed & 1;
  std::vector<int> warps((threads + 31) / 32), order;
  std::iota(warps.begin(), warps.end(), 0);
  if (seed == 1) std::reverse(warps.begin(), warps.end());
  for (int i = (int)warps.size() - 1; seed > 1 && i > 0; i--)
    std::swap(warps[i], warps[(seed = seed * 1664525u + 1013904223u) / 65536 % (i + 1)]);
  for (int warp : warps)
    for (int turn = 0; turn < turns_in_a_row; turn++)
      for (int thread = warp * 32; thread < std::min(threads, warp * 32 + 32); thread++) order.push_back(thread);
  body = std::move(kernel);
  int failed = 0;
  for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < grid[0] && !failed; blockIdx.x++) failed = run_block(threads, order);
  std::vector<Fiber>().swap(fibers);
  decltype(stacks)().swap(stacks);
  return failed;
}
