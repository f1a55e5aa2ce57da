// CUDA C++ as g++ takes it: every thread of a block is a fiber, __syncthreads() hands over to the next one.
//
// Fibers run one after the other from barrier to barrier, in an order that the caller picks: where a barrier is missing,
// some order reads what is not there yet. cp.async copies at once or at the last moment, when it is waited for. Threads
// of one block that do not all reach the same number of barriers are an error. The lanes of a warp meet before and after
// what they do together: ldmatrix and mma.sync.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include "cuda_types.h"

static Index threadIdx, blockIdx;
static constexpr size_t shared_capacity = 227 * 1024;
extern "C++" { alignas(128) unsigned char buf_dyn_shmem_ptr[shared_capacity]; }

struct Copy { void* to; const void* from; size_t bytes; };

struct Fiber {
  ucontext_t beginning;
  jmp_buf place;      // where it handed over
  bool begun = false;
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
static jmp_buf scheduler;
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

// Jumps between stacks: swapcontext() asks the kernel for the signal mask each time, which takes longer than most turns.
__attribute__((noinline)) static void hand_over(Fiber& fiber) {
  if (!_setjmp(fiber.place)) _longjmp(scheduler, 1);
}

// Runs a fiber until it hands over or ends.
__attribute__((noinline)) static void take_turn(Fiber& fiber) {
  if (_setjmp(scheduler)) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  setcontext(&fiber.beginning);
}

inline void __syncthreads() {
  Fiber& fiber = fibers[running];
  arrive(barrier_arrivals, fiber.barriers++);
  fiber.waiting = Fiber::at_barrier;
  hand_over(fiber);
}

inline void meet_warp() {
  Fiber& fiber = fibers[running];
  if (arrive(meeting_arrivals[running / 32], fiber.meetings++) == 32) return;  // the last lane goes on
  fiber.waiting = Fiber::at_meeting;
  hand_over(fiber);
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
  _longjmp(scheduler, 1);
}

// Runs one block; 0, or 1 where its threads part ways at a barrier.
static int run_block(int threads, const std::vector<int>& order) {
  memset(buf_dyn_shmem_ptr, 0xff, shared_capacity);  // NaN until written
  fibers = std::vector<Fiber>(threads);
  while ((int)stacks.size() < threads) stacks.emplace_back(new char[stack_bytes]);
  for (int thread = 0; thread < threads; thread++) {
    ucontext_t& context = fibers[thread].beginning;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks[thread].get();
    context.uc_stack.ss_size = stack_bytes;
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
      take_turn(fibers[thread]);
    }
  }
  for (const Fiber& fiber : fibers)
    if (!fiber.finished || fiber.barriers != fibers[0].barriers) return 1;
  return 0;
}

// Runs every block with its threads in that order; how many errors the first bad block had.
static int run_blocks(const int* grid, int threads, const std::vector<int>& order, std::function<void()> kernel) {
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

// 0 to count - 1. order 0: by number; 1: from the last; others: shuffled by that seed.
static std::vector<int> ordered(int count, unsigned seed) {
  std::vector<int> order(count);
  for (int i = 0; i < count; i++) order[i] = seed == 1 ? count - 1 - i : i;
  for (int i = count - 1; seed > 1 && i > 0; i--)
    std::swap(order[i], order[(seed = seed * 1664525u + 1013904223u) / 65536 % (i + 1)]);
  return order;
}

// Threads in an order. Odd orders copy asynchronously at once.
static int run_grid(const int* grid, int threads, unsigned seed, std::function<void()> kernel) {
  eager = seed & 1;
  return run_blocks(grid, threads, ordered(threads, seed), std::move(kernel));
}

// Turns in a row that a warp gets: about as many as its lanes meet between two barriers.
static constexpr int turns_in_a_row = 256;

// Warps in an order, of which one after the other runs on alone, to the block's next barrier. In run_grid()'s own orders a
// warp whose lanes meet, for ldmatrix or mma.sync, is one meeting ahead of another at most.
static int run_grid_warps_ahead(const int* grid, int threads, unsigned seed, std::function<void()> kernel) {
  eager = seed & 1;
  std::vector<int> order;
  for (int warp : ordered((threads + 31) / 32, seed))
    for (int turn = 0; turn < turns_in_a_row; turn++)
      for (int thread = warp * 32; thread < std::min(threads, warp * 32 + 32); thread++) order.push_back(thread);
  return run_blocks(grid, threads, order, std::move(kernel));
}
