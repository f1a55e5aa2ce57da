#include "thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace tirgemm {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than the gap between two calls of a loop, shorter than what a person or a neighbour notices.
constexpr std::chrono::microseconds kSpin(50);

void Relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct Job {
  bool (*block)(void*, int64_t);
  void* context;
  int64_t count;
  alignas(64) std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};

  // Takes one index at a time: blocks differ in cost, and threads in speed. Returns false when none is left.
  bool Step() {
    const int64_t index = next.fetch_add(1, std::memory_order_relaxed);
    if (index >= count) return false;
    if (!block(context, index)) {
      failed.store(true, std::memory_order_relaxed);
      next.store(count, std::memory_order_relaxed);
    }
    return true;
  }
};

// Bit i: CPU i.
using CpuMask = std::vector<unsigned long>;

// The CPUs of the process's first thread: any other one may have pinned itself. Empty where the kernel does not say.
CpuMask ProcessCpus() {
  // The mask's size is the kernel's, not glibc's 1024.
  for (int cpus = 1024; cpus <= 65536; cpus *= 4) {
    CpuMask mask(CPU_ALLOC_SIZE(cpus) / sizeof(unsigned long));
    if (sched_getaffinity(getpid(), CPU_ALLOC_SIZE(cpus), reinterpret_cast<cpu_set_t*>(mask.data())) == 0) return mask;
  }
  return {};
}

class Pool {
 public:
  explicit Pool(int workers) {
    // Otherwise theirs would be those of the thread that starts them.
    const CpuMask cpus = ProcessCpus();
    // Signals go to the threads of the program, not to these.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < workers; ++i) {
      try {
        std::thread([this, cpus] {
          if (!cpus.empty())
            sched_setaffinity(0, cpus.size() * sizeof(cpus[0]), reinterpret_cast<const cpu_set_t*>(cpus.data()));
          Work();
        }).detach();
        ++workers_;
      } catch (const std::system_error&) {
        break;  // the process may not have more threads: fewer will do
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  int workers() const { return workers_; }

  bool TryAcquire() {
    return !busy_.load(std::memory_order_relaxed) && !busy_.exchange(true, std::memory_order_acquire);
  }

  // Lets up to `limit` workers into the job. Only after TryAcquire.
  void Open(Job* job, int limit) {
    job_ = job;
    limit_ = static_cast<uint64_t>(limit);
    gate_.store((((gate_.load(std::memory_order_relaxed) >> kEpochShift) + 1) << kEpochShift) | kOpen,
                std::memory_order_release);
    signal_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&signal_), FUTEX_WAKE_PRIVATE, limit, nullptr, nullptr, 0);
    }
  }

  // Waits until no worker is inside, so that the job may go, and lets the next caller in.
  void Close() {
    uint64_t gate = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    for (int spins = 0; gate & kInside; gate = gate_.load(std::memory_order_acquire)) {
      if (++spins < 4096) {
        Relax();
      } else {
        sched_yield();
      }
    }
    busy_.store(false, std::memory_order_release);
  }

 private:
  // gate_: the job's number, whether workers may still enter, and how many are inside.
  static constexpr int kEpochShift = 32;
  static constexpr uint64_t kOpen = uint64_t{1} << 31;
  static constexpr uint64_t kInside = kOpen - 1;

  void Work() {
    uint64_t seen = 0;
    for (;;) {
      seen = Wait(seen);
      uint64_t gate = gate_.load(std::memory_order_acquire);
      while ((gate & kOpen) && (gate & kInside) < limit_.load(std::memory_order_relaxed)) {
        if (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire))
          continue;
        seen = gate >> kEpochShift;
        Job* job = job_;
        while (job->Step()) {
        }
        gate_.fetch_sub(1, std::memory_order_release);
        break;
      }
    }
  }

  // Returns the number of a job other than `seen`: spins for a moment, then sleeps.
  uint64_t Wait(uint64_t seen) {
    Clock::time_point until = Clock::now() + kSpin;
    for (int spins = 1;; ++spins) {
      const uint64_t epoch = gate_.load(std::memory_order_acquire) >> kEpochShift;
      if (epoch != seen) return epoch;
      Relax();
      if (spins % 64 != 0 || Clock::now() < until) continue;
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      const uint32_t signal = signal_.load(std::memory_order_seq_cst);
      if (gate_.load(std::memory_order_seq_cst) >> kEpochShift == seen) {
        syscall(SYS_futex, reinterpret_cast<uint32_t*>(&signal_), FUTEX_WAIT_PRIVATE, signal, nullptr, nullptr, 0);
      }
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      until = Clock::now() + kSpin;
    }
  }

  int workers_ = 0;
  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) std::atomic<uint32_t> signal_{0};
  std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<bool> busy_{false};
  std::atomic<uint64_t> limit_{0};
  std::atomic<Job*> job_{nullptr};
};

std::atomic<Pool*> pool{nullptr};
pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;

// A child of fork has none of the workers: it forgets the pool (whose state may be mid-job) and starts another.
void AfterForkInChild() {
  pool.store(nullptr, std::memory_order_relaxed);
  pthread_mutex_init(&pool_mutex, nullptr);
}

Pool* ThePool() {
  Pool* found = pool.load(std::memory_order_acquire);
  if (__builtin_expect(found != nullptr, 1)) return found;
  pthread_mutex_lock(&pool_mutex);
  found = pool.load(std::memory_order_relaxed);
  if (!found) {
    static const int registered = pthread_atfork(nullptr, nullptr, AfterForkInChild);
    static_cast<void>(registered);
    // Never destroyed: workers sleep in it until the process ends.
    found = new Pool(UsableThreads() - 1);
    pool.store(found, std::memory_order_release);
  }
  pthread_mutex_unlock(&pool_mutex);
  return found;
}

// The folder of this process's cgroup in the hierarchy of a controller ("": the unified one), which is at `root`, and
// those that it is in, up to `root`.
std::vector<std::string> Groups(const std::string& proc, const std::string& controller, const std::string& root) {
  std::string group;
  std::ifstream lines(proc + "/self/cgroup");  // NUMBER:CONTROLLER,...:/GROUP
  for (std::string line; group.empty() && std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(":/", first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find("," + controller + ",") != std::string::npos) group = line.substr(second + 1);
  }
  std::vector<std::string> folders{root + group};
  while (!group.empty()) {
    group.resize(group.find_last_of('/'));
    folders.push_back(root + group);
  }
  return folders;
}

}  // namespace

int QuotaThreads(const std::string& proc, const std::string& cgroup) {
  int threads = INT_MAX;
  const auto take = [&threads](double quota, double period) {
    if (quota > 0 && period > 0) threads = std::min(threads, std::max(1, static_cast<int>(quota / period + 0.999)));
  };
  for (const std::string& group : Groups(proc, "", cgroup)) {
    std::ifstream unified(group + "/cpu.max");
    std::string quota;
    double period = 0;
    if (unified >> quota >> period && quota != "max") take(std::stod(quota), period);
  }
  for (const std::string& group : Groups(proc, "cpu", cgroup + "/cpu")) {
    std::ifstream legacy_quota(group + "/cpu.cfs_quota_us"), legacy_period(group + "/cpu.cfs_period_us");
    double quota = 0, period = 0;
    if (legacy_quota >> quota && legacy_period >> period) take(quota, period);
  }
  return threads;
}

int UsableThreads() {
  CpuMask cpus = ProcessCpus();
  int allowed = 0;
  if (!cpus.empty()) allowed = CPU_COUNT_S(cpus.size() * sizeof(cpus[0]), reinterpret_cast<cpu_set_t*>(cpus.data()));
  if (allowed == 0) allowed = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  return std::min(allowed, QuotaThreads("/proc", "/sys/fs/cgroup"));
}

int OmpThreads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return text ? static_cast<int>(std::clamp(std::strtol(text, nullptr, 10), 0L, 1L << 20)) : 0;
}

bool ParallelFor(bool (*block)(void*, int64_t), void* context, int64_t count, int threads) {
  Job job{block, context, count};
  Pool* const found = count > 1 && threads != 1 ? ThePool() : nullptr;
  int helpers = found ? found->workers() : 0;
  if (threads > 0) helpers = std::min(helpers, threads - 1);
  helpers = static_cast<int>(std::min<int64_t>(helpers, count - 1));
  bool opened = false;
  do {
    if (!opened && helpers > 0 && found->TryAcquire()) {
      found->Open(&job, helpers);
      opened = true;
    }
  } while (job.Step());
  if (opened) found->Close();
  return !job.failed.load(std::memory_order_acquire);
}

}  // namespace tirgemm
