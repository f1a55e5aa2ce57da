// The state of a call on the emulated GPU, and who runs next: fibers, blocks, clusters, kernels, what is under way.
//
// Nothing happens between two of a thread's instructions that synchronise; there any other thread may run. What the
// memory model leaves open is up to the seed: in which order warps run and lanes of a warp, and whether what is
// asynchronous happens at once, sometime, or when nobody can go on without it.
#pragma once
#include <deque>
#include <random>
#include <string>

#include "hopper_on_cpu.h"

// Saves the registers of the running fiber and goes on with another's (System V, x86-64).
extern "C" void hopper_switch(void** from, void* to);
asm(R"(
.text
.globl hopper_switch
.hidden hopper_switch
hopper_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace hopper {

constexpr size_t stack_bytes = 48 * 1024;
constexpr int most_threads = 4096;
constexpr long most_steps = 400000000;

struct Block;

// An mbarrier. It counts for the asynchronous proxy and for the cluster only once a fence has shown them its init.
struct Barrier {
  bool made = false, shown_async = false, shown_cluster = false;
  int expected = 0, pending = 0, maker = 0;
  long bytes = 0;
  unsigned phase = 0;
};

// What is asynchronous: a TMA load into one block, a thread's copies up to an arrival, a TMA store's reading.
struct Job {
  enum { load, copies, store } kind;
  Block* block;
  bool done = false;
  CUtensorMap map;
  int x, y, z;
  uint32_t at, barrier;
  struct Copy { uint32_t to; const void* from; int bytes, read; };
  std::vector<Copy> list;
};
using JobRef = std::shared_ptr<Job>;

struct Fiber {
  void* sp = nullptr;
  std::unique_ptr<char[]> stack;
  Block* block = nullptr;
  int thread = 0;
  bool finished = false;
  enum Wait { nothing, bar, mbar, warp, wgmma, cluster, grid } wait = nothing;
  uint64_t a = 0, b = 0;
  int issued = 0;               // wgmmas
  std::vector<int> groups;      // the number of wgmmas at each commit
  bool fenced = false;          // wgmma.fence since the thread may have touched its sums
  std::vector<JobRef> open;     // TMA stores in no group yet
  std::deque<std::vector<JobRef>> stores;
  std::vector<Job::Copy> copies;
  bool arrived = false;         // at the cluster's barrier, whose number was
  uint64_t number = 0;
  std::vector<uint32_t> unshown;  // 16-byte words of shared memory that it wrote, unknown to the cluster
};

// One set of accumulators of a warpgroup: registers of its threads, whose value is here while wgmmas are under way.
struct Sums {
  void* registers[128] = {};
  bool held[128] = {};
  int n = 0;
  bool half = false;
  std::vector<float> values;  // 64 x n
};

struct Multiply {
  uint64_t a, b;
  int n;
  bool half, bf16, across_a, across_b, adds, unfenced;
  int sums, issued;
};

struct Warpgroup {
  std::vector<Sums> sums;
  std::vector<Multiply> list;
  int done = 0;
};

struct Warp {
  Block* block = nullptr;
  int first = 0, met = 0;
  uint64_t meetings = 0;
  double priority = 0;
  bool awake = true;
  struct { uint32_t at, words[4]; } shown[32];
};

struct Meeting {
  int arrived = 0, count = 0;
  uint64_t number = 0;
};

struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  int arrived = 0, living = 0;
  uint64_t number = 0;
};

struct Block {
  Cluster* home = nullptr;
  int kernel = 0, index = 0, rank = 0, threads = 0, living = 0;
  bool left = false, triggered = false;
  size_t size = 0;
  unsigned char* generic = nullptr;   // what threads read
  std::vector<unsigned char> async;   // what TMA and wgmma read
  std::vector<std::pair<uint32_t, uint32_t>> dirty;  // written by threads, not fenced
  std::vector<bool> unshown;          // 16-byte words that other blocks of the cluster may not see
  std::vector<Barrier> barriers;      // one for every 8 bytes
  std::vector<uint32_t> made;         // which of them have had an init
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  Meeting meetings[16];
  ~Block() { free(generic); }
};

struct Progress { int started = 0, triggered = 0, ended = 0; bool complete = false; };

struct State {
  const Launch* launches;
  const Kernel* kernels;
  int count;
  std::vector<Progress> progress;
  std::vector<std::unique_ptr<Cluster>> clusters;
  int threads = 0;                 // of resident blocks
  std::vector<Warp*> awake;
  std::vector<JobRef> arriving, reading;
  std::vector<std::pair<Block*, int>> multiplying;  // warpgroups with wgmmas under way
  long steps = 0;                  // taken by threads, and clocks read: what the emulated clocks show
  bool changed = true;             // a block has left, or lets the next kernel begin
  Fiber* running = nullptr;
  void* scheduler = nullptr;
  std::string error;
  std::vector<std::unique_ptr<char[]>> stacks;
  // by the seed
  std::minstd_rand random;
  double arrives = 0, reads = 0, changes = 0;
  bool priorities = false, backwards = false;
  double of_block = 0, of_warpgroup = 0;
};
static State* state;

inline double chance() { return (state->random() - 1) / 2147483646.0; }
inline size_t pick(size_t count) { return state->random() % count; }
inline Fiber& self() { return *state->running; }
inline Block& block() { return *self().block; }
inline Cluster& cluster() { return *block().home; }

inline void fail(const std::string& why) {
  if (state->error.empty()) state->error = why;
}

// Back to the scheduler; it comes back once the fiber may go on.
inline void pause(Fiber::Wait wait = Fiber::nothing, uint64_t a = 0, uint64_t b = 0) {
  Fiber& fiber = self();
  fiber.wait = wait, fiber.a = a, fiber.b = b;
  hopper_switch(&fiber.sp, state->scheduler);
}

inline void wake(Block& block) {
  for (Warp& warp : block.warps)
    if (!warp.awake) warp.awake = true, state->awake.push_back(&warp);
}

inline void wake_all() {
  for (auto& cluster : state->clusters)
    for (auto& block : cluster->blocks) wake(*block);
}

inline bool ready(const Fiber& fiber) {
  Block& block = *fiber.block;
  if (fiber.finished) return false;
  switch (fiber.wait) {
    case Fiber::bar: return block.meetings[fiber.a].number != fiber.b;
    case Fiber::mbar: return (block.barriers[fiber.a].phase & 1) != fiber.b;
    case Fiber::warp: return block.warps[fiber.thread / 32].meetings != fiber.a;
    case Fiber::wgmma: return block.warpgroups[fiber.thread / 128].list[fiber.a - 1].issued == 128;
    case Fiber::cluster: return block.home->number != fiber.a;
    case Fiber::grid: return block.kernel == 0 || state->progress[block.kernel - 1].complete;
    default: return true;
  }
}

// In hopper_on_cpu.cc.
void perform(const JobRef& job);
void multiply(Block& block, int warpgroup, int until);
void leave(Block& block);
void cluster_met(Cluster& cluster);

inline void enter() {
  Fiber& fiber = self();
  state->kernels[block().kernel](state->launches[block().kernel].arguments);
  fiber.finished = true;
  Block& mine = block();
  Cluster& home = *mine.home;
  home.living--;
  if (!fiber.arrived) cluster_met(home);
  if (--mine.living == 0) leave(mine);
  wake(mine);
  pause();
}

inline void start_cluster(int kernel) {
  const Launch& launch = state->launches[kernel];
  Progress& progress = state->progress[kernel];
  auto made = std::make_unique<Cluster>();
  const double random_cluster = chance();
  for (int rank = 0; rank < launch.cluster; rank++) {
    auto block = std::make_unique<Block>();
    block->home = made.get(), block->kernel = kernel, block->rank = rank, block->index = progress.started++;
    block->threads = block->living = launch.threads;
    block->size = (launch.shared_bytes + 1023) / 1024 * 1024 + 1024;
    block->generic = (unsigned char*)aligned_alloc(1024, block->size);
    memset(block->generic, 0xff, block->size);
    block->async.assign(block->size, 0xff);
    block->unshown.resize(block->size / 16);
    block->barriers.resize(block->size / 8);
    block->fibers.resize(launch.threads);
    block->warps.resize(launch.threads / 32);
    block->warpgroups.resize((launch.threads + 127) / 128);
    made->living += launch.threads;
    const double random_block = (chance() + random_cluster) * state->of_block;
    double random_warpgroup = 0;
    for (int thread = 0; thread < launch.threads; thread++) {
      Fiber& fiber = block->fibers[thread];
      fiber.block = block.get(), fiber.thread = thread;
      if (state->stacks.empty()) state->stacks.emplace_back(new char[stack_bytes]);
      fiber.stack = std::move(state->stacks.back());
      state->stacks.pop_back();
      void** top = (void**)(((uintptr_t)fiber.stack.get() + stack_bytes) & ~(uintptr_t)63);
      *--top = nullptr;
      *--top = (void*)enter;
      fiber.sp = top - 6;
      if (thread % 128 == 0) random_warpgroup = chance() * state->of_warpgroup;
      if (thread % 32) continue;
      Warp& warp = block->warps[thread / 32];
      warp.block = block.get(), warp.first = thread;
      warp.priority = random_block + random_warpgroup + chance();
      state->awake.push_back(&warp);
    }
    made->blocks.push_back(std::move(block));
  }
  state->threads += launch.threads * launch.cluster;
  state->clusters.push_back(std::move(made));
}

// Begins as many clusters as find a place, kernel after kernel.
inline void start() {
  for (int kernel = 0; kernel < state->count; kernel++) {
    const Launch& launch = state->launches[kernel];
    if (kernel > 0) {
      const Progress& before = state->progress[kernel - 1];
      if (!before.complete && !(launch.dependent && before.triggered == state->launches[kernel - 1].grid)) break;
    }
    Progress& mine = state->progress[kernel];
    const int more = launch.threads * launch.cluster;
    while (mine.started < launch.grid && (state->threads == 0 || state->threads + more <= most_threads))
      start_cluster(kernel);
    if (mine.started < launch.grid) break;
  }
}

inline void end_clusters() {
  auto ended = [](const std::unique_ptr<Cluster>& cluster) {
    if (cluster->living) return false;
    for (auto& block : cluster->blocks) {
      state->threads -= block->threads;
      for (Fiber& fiber : block->fibers) state->stacks.push_back(std::move(fiber.stack));
      auto gone = [&](Warp* warp) { return warp->block == block.get(); };
      state->awake.erase(std::remove_if(state->awake.begin(), state->awake.end(), gone), state->awake.end());
    }
    return true;
  };
  state->clusters.erase(std::remove_if(state->clusters.begin(), state->clusters.end(), ended), state->clusters.end());
}

inline JobRef taken(std::vector<JobRef>& jobs, size_t at) {
  JobRef job = jobs[at];
  jobs[at] = jobs.back();
  jobs.pop_back();
  return job;
}

// One step of every lane of a warp that may go on; whether there was any.
inline bool step(Warp& warp) {
  bool any = false;
  const unsigned turn = state->backwards ? 31 : pick(32);
  for (unsigned i = 0; i < 32; i++) {
    const unsigned lane = state->backwards ? 31 - i : i ^ turn;
    Fiber& fiber = warp.block->fibers[warp.first + lane];
    if (!ready(fiber)) continue;
    any = true;
    state->steps++;
    state->running = &fiber;
    threadIdx.x = fiber.thread, blockIdx.x = fiber.block->index;
    fiber.wait = Fiber::nothing;
    hopper_switch(&state->scheduler, fiber.sp);
    if (!state->error.empty()) return true;
  }
  return any;
}

inline int schedule() {
  for (;;) {
    if (state->changed) {
      state->changed = false;
      end_clusters();
      start();
    }
    if (!state->error.empty()) return 2;
    if (state->steps > most_steps) return 1;
    if (!state->arriving.empty() && chance() < state->arrives)
      perform(taken(state->arriving, pick(state->arriving.size())));
    if (!state->reading.empty() && chance() < state->reads)
      perform(taken(state->reading, pick(state->reading.size())));
    if (!state->multiplying.empty() && chance() < state->reads) {
      const auto [block, warpgroup] = state->multiplying[pick(state->multiplying.size())];
      const Warpgroup& group = block->warpgroups[warpgroup];
      if (group.list[group.done].issued == 128) multiply(*block, warpgroup, group.done + 1);
    }
    if (state->awake.empty()) {
      if (!state->arriving.empty()) {
        perform(taken(state->arriving, pick(state->arriving.size())));
        continue;
      }
      for (const Progress& progress : state->progress)
        if (!progress.complete) return 1;
      return 0;
    }
    size_t at = pick(state->awake.size());
    if (state->priorities) {
      for (size_t i = 0; i < state->awake.size(); i++)
        if (state->awake[i]->priority > state->awake[at]->priority) at = i;
      if (chance() < state->changes)
        state->awake[at]->priority = chance() * (1 + state->of_block + state->of_warpgroup);
    }
    Warp& warp = *state->awake[at];
    // First asleep, so that what its own lanes do may wake it.
    warp.awake = false;
    state->awake[at] = state->awake.back();
    state->awake.pop_back();
    if (step(warp) && !warp.awake) warp.awake = true, state->awake.push_back(&warp);
  }
}

}  // namespace hopper
