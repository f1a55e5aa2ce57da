// The instructions of sm_90a that kernels of wgmma use, as hard on them as the PTX ISA allows; and the entry.
//
// A block's shared memory exists twice: as its threads see it and as TMA and wgmma do (the asynchronous proxy). What a
// thread writes is poison to the other side until a fence.proxy.async behind it; where TMA will write is poison to
// both.
#include "hopper_model.h"
#include "hopper_wgmma.h"

Index threadIdx, blockIdx;

namespace hopper {

// -- shared memory ---------------------------------------------------------------------------------

unsigned char* shared() { return block().generic; }
uint32_t rank() { return block().rank; }
uint32_t to_shared(const void* pointer) {
  return block().rank << 24 | (uint32_t)((const unsigned char*)pointer - block().generic);
}

static Block* target(uint32_t address) {
  Cluster& home = cluster();
  if (address >> 24 >= home.blocks.size()) { fail("an address outside of the cluster"); return &block(); }
  Block* found = home.blocks[address >> 24].get();
  if (found->left) fail("the shared memory of a block that has left");
  return found;
}
static uint32_t offset(uint32_t address) { return address & 0xffffff; }

static void poison(Block& block, uint32_t at, uint32_t bytes) {
  memset(block.generic + at, 0xff, bytes);
  memset(&block.async[at], 0xff, bytes);
}

// By a thread: the asynchronous proxy sees it behind a fence only.
static void write_generic(Block& block, uint32_t at, const void* from, uint32_t bytes) {
  memcpy(block.generic + at, from, bytes);
  memset(&block.async[at], 0xff, bytes);
  block.dirty.emplace_back(at, bytes);
}

// -- barriers of threads ---------------------------------------------------------------------------

void sync_warp() {
  Block& mine = block();
  Warp& warp = mine.warps[self().thread / 32];
  if (++warp.met == 32) {
    warp.met = 0, warp.meetings++;
    wake(mine);
    return;
  }
  pause(Fiber::warp, warp.meetings);
}

void bar_sync(int name, int count) {
  Block& mine = block();
  Fiber& fiber = self();
  Meeting& meeting = mine.meetings[name];
  if (!count) count = mine.threads;
  if (meeting.arrived && meeting.count != count) fail("a named barrier with two counts");
  meeting.count = count;
  if (++meeting.arrived == count) {
    meeting.arrived = 0, meeting.number++;
    wake(mine);
    pause();
  } else {
    pause(Fiber::bar, name, meeting.number);
  }
}

// Threads that have left count as arrived.
void cluster_met(Cluster& home) {
  if (home.arrived == 0 || home.arrived < home.living) return;
  home.arrived = 0, home.number++;
  for (auto& block : home.blocks) wake(*block);
}

void cluster_arrive(bool release) {
  pause();
  Fiber& fiber = self();
  Block& mine = block();
  if (release) {
    for (uint32_t word : fiber.unshown) mine.unshown[word] = false;
    fiber.unshown.clear();
    for (uint32_t at : mine.made)
      if (mine.barriers[at].maker == fiber.thread) mine.barriers[at].shown_cluster = true;
  }
  if (fiber.arrived) fail("an arrival at the cluster's barrier without a wait before");
  fiber.arrived = true;
  fiber.number = cluster().number;
  cluster().arrived++;
  cluster_met(cluster());
}

void cluster_wait() {
  Fiber& fiber = self();
  if (!fiber.arrived) fail("a wait for the cluster's barrier without an arrival");
  pause(Fiber::cluster, fiber.number);
  fiber.arrived = false;
}

// -- mbarriers -------------------------------------------------------------------------------------

static Barrier& barrier_at(Block& block, uint32_t at) {
  if (at % 8 || at / 8 >= block.barriers.size()) { fail("no place for an mbarrier"); at = 0; }
  Barrier& barrier = block.barriers[at / 8];
  if (!barrier.made) fail("an mbarrier used before its init");
  return barrier;
}

static void count(Block& block, Barrier& barrier, int arrivals, long bytes) {
  barrier.pending -= arrivals, barrier.bytes += bytes;
  if (barrier.pending < 0) fail("more arrivals at an mbarrier than it counts");
  if (barrier.pending || barrier.bytes) return;
  barrier.phase++, barrier.pending = barrier.expected;
  wake(block);
}

void barrier_init(uint32_t at, uint32_t count) {
  Block& mine = block();
  Barrier& barrier = mine.barriers[offset(at) / 8];
  if (!barrier.made) mine.made.push_back(offset(at) / 8);
  barrier = Barrier();
  barrier.made = true, barrier.expected = barrier.pending = count, barrier.maker = self().thread;
}

static void arrive(uint32_t at, int arrivals, long bytes) {
  pause();
  Block& there = *target(at);
  Barrier& barrier = barrier_at(there, offset(at));
  if (&there != &block() && !barrier.shown_cluster) fail("an mbarrier whose init the cluster need not see");
  count(there, barrier, arrivals, bytes);
}

void barrier_arrive(uint32_t at, uint32_t count) { arrive(at, count, 0); }
void barrier_expect(uint32_t at, uint32_t bytes) { arrive(at, 1, bytes); }

void barrier_wait(uint32_t at, int parity) {
  barrier_at(block(), offset(at));
  pause(Fiber::mbar, offset(at) / 8, parity & 1);
}

// Of all that was written in the block until now: more than PTX promises, so that nothing right is called wrong.
void fence_proxy() {
  Block& mine = block();
  for (auto [at, bytes] : mine.dirty) memcpy(&mine.async[at], mine.generic + at, bytes);
  mine.dirty.clear();
  for (uint32_t at : mine.made) mine.barriers[at].shown_async = true;
}

void fence_init() {
  for (uint32_t at : block().made) {
    Barrier& barrier = block().barriers[at];
    if (barrier.maker == self().thread) barrier.shown_async = barrier.shown_cluster = true;
  }
}

// -- TMA and cp.async ------------------------------------------------------------------------------

// opaque: base, rank, three sizes, strides of two in bytes, three sides of the box, swizzle, bytes of an element.
enum { BASE, RANK, SIZES, STRIDES = 5, BOX = 7, SWIZZLE = 10, ELEMENT = 11 };

static uint32_t box_bytes(const CUtensorMap& map) {
  return map.opaque[BOX] * map.opaque[BOX + 1] * map.opaque[ELEMENT];
}

// TMA reads and writes rows from multiples of 16 bytes alone; elsewhere an H200 stops at an illegal instruction.
static bool rows_begin_at_units(const CUtensorMap& map, int x) {
  return (long)x * (long)map.opaque[ELEMENT] % 16 == 0;
}

// Where element (x, y) of a job's box lies: in memory (null outside) and in shared memory.
static unsigned char* in_memory(const Job& job, int x, int y) {
  const auto* map = job.map.opaque;
  const long place[3] = {(long)job.x + x, (long)job.y + y, job.z};
  long bytes = place[0] * (long)map[ELEMENT];
  for (int i = 0; i < (int)map[RANK]; i++) {
    if (place[i] < 0 || place[i] >= (long)map[SIZES + i]) return nullptr;
    if (i) bytes += place[i] * (long)map[STRIDES + i - 1];
  }
  return (unsigned char*)map[BASE] + bytes;
}
static uint32_t in_shared(const Job& job, int x, int y) {
  const auto* map = job.map.opaque;
  return swizzled(job.at + (y * map[BOX] + x) * map[ELEMENT], map[SWIZZLE]);
}

void perform(const JobRef& job) {
  if (job->done) return;
  job->done = true;
  Block& there = *job->block;
  if (job->kind == Job::copies) {
    for (const auto& copy : job->list) {
      unsigned char bytes[16] = {};
      memcpy(bytes, copy.from, copy.read);
      write_generic(there, copy.to, bytes, copy.bytes);
    }
    if (there.left) return fail("a copy to the shared memory of a block that has left");
    return count(there, barrier_at(there, job->barrier), 1, 0);
  }
  const auto* map = job->map.opaque;
  const size_t element = map[ELEMENT];
  if (job->kind == Job::load && there.left) return fail("a load to the shared memory of a block that has left");
  for (int y = 0; y < (int)map[BOX + 1]; y++)
    for (int x = 0; x < (int)map[BOX]; x++) {
      unsigned char* memory = in_memory(*job, x, y);
      const uint32_t at = in_shared(*job, x, y);
      if (job->kind == Job::store) {
        if (memory) memcpy(memory, &there.async[at], element);
      } else {
        if (memory) memcpy(&there.async[at], memory, element);
        else memset(&there.async[at], 0, element);
        memcpy(there.generic + at, &there.async[at], element);
      }
    }
  if (job->kind == Job::store) return;
  Barrier& barrier = barrier_at(there, job->barrier);
  if (!barrier.shown_async) fail("an mbarrier whose init TMA need not see");
  count(there, barrier, 0, -(long)box_bytes(job->map));
}

void tma_load(uint32_t to, const void* map, int x, int y, int z, uint32_t barrier, int mask) {
  pause();
  if (mask < 0) mask = 1 << block().rank;
  for (uint32_t peer = 0; mask >> peer; peer++) {
    if (!(mask >> peer & 1)) continue;
    auto job = std::make_shared<Job>();
    job->kind = Job::load, job->block = target(peer << 24), job->map = *(const CUtensorMap*)map;
    job->x = x, job->y = y, job->z = z, job->at = offset(to), job->barrier = offset(barrier);
    if (job->at + box_bytes(job->map) > job->block->size) return fail("a load beyond the end of shared memory");
    if (!rows_begin_at_units(job->map, x)) return fail("a load whose rows begin at no multiple of 16 bytes");
    poison(*job->block, job->at, box_bytes(job->map));
    if (state->arrives >= 1) perform(job);
    else state->arriving.push_back(job);
  }
}

void tma_store(const void* map, int x, int y, int z, uint32_t from) {
  pause();
  auto job = std::make_shared<Job>();
  job->kind = Job::store, job->block = &block(), job->map = *(const CUtensorMap*)map;
  job->x = x, job->y = y, job->z = z, job->at = offset(from);
  if (!rows_begin_at_units(job->map, x)) return fail("a store whose rows begin at no multiple of 16 bytes");
  self().open.push_back(job);
  if (state->reads >= 1) perform(job);
  else state->reading.push_back(job);
}

void bulk_commit() {
  self().stores.push_back(std::move(self().open));
  self().open.clear();
}

static void stored(const JobRef& job) {
  perform(job);
  auto& reading = state->reading;
  reading.erase(std::remove(reading.begin(), reading.end(), job), reading.end());
}

void bulk_wait(int pending) {
  pause();
  auto& stores = self().stores;
  for (; (int)stores.size() > pending; stores.pop_front())
    for (const JobRef& job : stores.front()) stored(job);
}

void cp_async(uint32_t to, const void* from, int bytes, int read) {
  poison(block(), offset(to), bytes);
  self().copies.push_back({offset(to), from, bytes, read});
}

// Arrives once the thread's copies so far are there; the arrival is one of those that the barrier counts.
void cp_async_arrive(uint32_t barrier) {
  pause();
  auto job = std::make_shared<Job>();
  job->kind = Job::copies, job->block = &block(), job->barrier = offset(barrier), job->list = std::move(self().copies);
  self().copies.clear();
  if (state->arrives >= 1) perform(job);
  else state->arriving.push_back(job);
}

// A block's last thread has left: its shared memory may be another's, whatever still reads it.
void leave(Block& mine) {
  mine.left = true;
  memset(mine.async.data(), 0xff, mine.size);
  for (Fiber& fiber : mine.fibers) {
    for (auto& group : fiber.stores)
      for (auto& job : group) stored(job);
    for (auto& job : fiber.open) stored(job);
  }
  for (auto& job : state->arriving)
    if (job->block == &mine) fail("a block leaves before what is copied to it has come");
  auto& list = state->multiplying;
  auto here = [&](const std::pair<Block*, int>& entry) { return entry.first == &mine; };
  list.erase(std::remove_if(list.begin(), list.end(), here), list.end());
  Progress& progress = state->progress[mine.kernel];
  if (!mine.triggered) progress.triggered++;
  mine.triggered = state->changed = true;
  if (++progress.ended == state->launches[mine.kernel].grid) {
    progress.complete = true;
    wake_all();
  }
}

// -- fragments, sums for other blocks --------------------------------------------------------------

void stmatrix(uint32_t to, int count, bool across, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  Block& mine = block();
  Warp& warp = mine.warps[self().thread / 32];
  warp.shown[self().thread % 32] = {offset(to), {a, b, c, d}};
  if (warp.met == 31)
    for (int matrix = 0; matrix < count; matrix++)
      for (int row = 0; row < 8; row++) {
        uint16_t values[8];
        for (int column = 0; column < 8; column++) {
          const int r = across ? column : row, at = across ? row : column;
          values[column] = warp.shown[r * 4 + at / 2].words[matrix] >> at % 2 * 16;
        }
        write_generic(mine, warp.shown[matrix * 8 + row].at, values, 16);
      }
  sync_warp();
}

void store_shared(uint32_t to, float a, float b, float c, float d) {
  const float values[4] = {a, b, c, d};
  write_generic(block(), offset(to), values, 16);
  if (cluster().blocks.size() == 1) return;
  block().unshown[offset(to) / 16] = true;
  self().unshown.push_back(offset(to) / 16);
}

void store_words(uint32_t to, uint32_t a, uint32_t b) {
  const uint32_t values[2] = {a, b};
  write_generic(block(), offset(to), values, 8);
}

void store_floats(uint32_t to, float a, float b) {
  const float values[2] = {a, b};
  write_generic(block(), offset(to), values, 8);
}

void store_float(uint32_t to, float a) { write_generic(block(), offset(to), &a, 4); }

void load_cluster(float& a, float& b, float& c, float& d, uint32_t from) {
  Block& there = *target(from);
  if (&there != &block() && there.unshown[offset(from) / 16]) {
    a = b = c = d = NAN;
    return;
  }
  float values[4];
  memcpy(values, there.generic + offset(from), 16);
  a = values[0], b = values[1], c = values[2], d = values[3];
}

// -- dependent kernels -----------------------------------------------------------------------------

void launch_dependents() {
  if (!block().triggered) state->progress[block().kernel].triggered++;
  block().triggered = state->changed = true;
  pause();
}

void wait_for_kernel() { pause(Fiber::grid); }

// -- clocks ----------------------------------------------------------------------------------------

uint64_t clock() { return ++state->steps; }
uint32_t sm() { return block().index; }

// -- the entry -------------------------------------------------------------------------------------

int run(const Launch* launches, const Kernel* kernels, int count, unsigned seed, char* message) {
  State fresh;
  state = &fresh;
  fresh.launches = launches, fresh.kernels = kernels, fresh.count = count;
  fresh.progress.resize(count);
  fresh.random.seed(seed * 7919 + 17);
  // arrives, reads: 0 as late as can be, 1 at once.
  static const struct { double arrives, reads, changes, of_block, of_warpgroup; bool priorities, backwards; } ways[] = {
      {0, 0, 0.01, 0, 0, true, false},     {1, 0, 0.002, 0, 4, true, false},  {0.05, 0.05, 0, 0, 0, false, false},
      {0, 1, 0.01, 0, 2, true, true},      {1, 1, 0, 0, 0, false, true},      {0.3, 0, 0.0005, 4, 2, true, false},
      {1, 0, 0.05, 0, 0, true, false},     {0, 0, 0.001, 4, 4, true, true},
  };
  const auto& way = ways[seed % (sizeof ways / sizeof *ways)];
  fresh.arrives = way.arrives, fresh.reads = way.reads, fresh.changes = way.changes;
  fresh.of_block = way.of_block, fresh.of_warpgroup = way.of_warpgroup;
  fresh.priorities = way.priorities, fresh.backwards = way.backwards;
  const int outcome = schedule();
  strncpy(message, fresh.error.c_str(), 199);
  state = nullptr;
  return outcome;
}

}  // namespace hopper
