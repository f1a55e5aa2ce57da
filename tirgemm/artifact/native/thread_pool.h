// The threads that CPU kernels run on: started once a process, spinning briefly between jobs, asleep otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace tirgemm {

// The hardware threads that this process may use: the affinity of its first thread and, where there are any, its
// cgroups' quotas.
int UsableThreads();

// Whole CPUs of the least quota of this process's cgroups, rounded up, or a large number without one. `proc` and
// `cgroup` are where the kernel shows itself. As `usable_threads` of detect_cpu.py has it.
int QuotaThreads(const std::string& proc, const std::string& cgroup);

// The first number of OMP_NUM_THREADS, which may be a list of them; 0 where it is not set.
int OmpThreads();

// Calls `block(context, index)` for every index in [0, count), on the calling thread and on at most `threads` - 1
// workers (0: as many as there are), and returns when all are done. `block` returns false to stop the rest.
//
// Safe from several threads at once: the workers serve one job at a time, and a caller who finds them busy works alone
// until they are free. The workers are started at the first parallel call, as many as UsableThreads() says then, with
// the affinity of the process's first thread; after fork the child starts workers of its own. Returns whether every
// call returned true.
bool ParallelFor(bool (*block)(void* context, int64_t index), void* context, int64_t count, int threads);

}  // namespace tirgemm
