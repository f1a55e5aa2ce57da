// The threads of a block as fibers, and their turns: what cuda_on_cpu.h declares.
#include "cuda_on_cpu.h"

#include <setjmp.h>
#include <ucontext.h>

Index threadIdx, blockIdx;
alignas(128) unsigned char buf_dyn_shmem_ptr[shared_capacity];
int running;
const void* shown[1024][2];

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
static bool eager;
static std::function<void()> body;

// How many threads have reached each barrier of the block; how many lanes each meeting of their warp.
static std::vector<int> barrier_arrivals;
static std::vector<std::vector<int>> meeting_arrivals;

inline int arrive(std::vector<int>& arrivals, int number) {
  if ((int)arrivals.size() <= number) arrivals.resize(number + 1);
  return ++arrivals[number];
}

// Jumps between stacks: swapcontext() asks the kernel for the signal mask each time, which takes longer than most
// turns.
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

void __syncthreads() {
  Fiber& fiber = fibers[running];
  arrive(barrier_arrivals, fiber.barriers++);
  fiber.waiting = Fiber::at_barrier;
  hand_over(fiber);
}

void meet_warp() {
  Fiber& fiber = fibers[running];
  if (arrive(meeting_arrivals[running / 32], fiber.meetings++) == 32) return;  // the last lane goes on
  fiber.waiting = Fiber::at_meeting;
  hand_over(fiber);
}

static bool ready(int thread) {
  const Fiber& fiber = fibers[thread];
  if (fiber.finished) return false;
  if (fiber.waiting == Fiber::at_barrier) return barrier_arrivals[fiber.barriers - 1] == (int)fibers.size();
  if (fiber.waiting == Fiber::at_meeting) return meeting_arrivals[thread / 32][fiber.meetings - 1] == 32;
  return true;
}

void cp_async(void* to, const void* from, size_t bytes) {
  if (eager) memcpy(to, from, bytes);
  fibers[running].open.push_back({to, from, bytes});
}

void cp_async_commit() {
  Fiber& fiber = fibers[running];
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}

void cp_async_wait(size_t pending) {
  auto& groups = fibers[running].groups;
  for (; groups.size() > pending; groups.erase(groups.begin()))
    for (const Copy& copy : groups.front())
      if (!eager) memcpy(copy.to, copy.from, copy.bytes);
}

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

int run_grid(const int* grid, int threads, unsigned seed, std::function<void()> kernel) {
  eager = seed & 1;
  return run_blocks(grid, threads, ordered(threads, seed), std::move(kernel));
}

// Turns in a row that a warp gets: about as many as its lanes meet between two barriers.
static constexpr int turns_in_a_row = 256;

int run_grid_warps_ahead(const int* grid, int threads, unsigned seed, std::function<void()> kernel) {
  eager = seed & 1;
  std::vector<int> order;
  for (int warp : ordered((threads + 31) / 32, seed))
    for (int turn = 0; turn < turns_in_a_row; turn++)
      for (int thread = warp * 32; thread < std::min(threads, warp * 32 + 32); thread++) order.push_back(thread);
  return run_blocks(grid, threads, order, std::move(kernel));
}
