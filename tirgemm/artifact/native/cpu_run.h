// Runs a plan on the CPU: functions of a shared object, called for every block index on the launcher's threads.
#pragma once

#include <tvm/ffi/c_api.h>

#include <string>
#include <vector>

#include "arguments.h"
#include "plan.h"
#include "private_library.h"

namespace tirgemm {

class CpuRunner {
 public:
  // Throws kIncompatible where the CPU lacks a feature that the plan names, kCorrupt where a symbol is missing.
  CpuRunner(const Plan& plan, const std::string& shared_object);

  // Runs the kernels in order and returns when they are done; safe from several threads. With the address of a packed
  // workspace the kernel that writes it is left out.
  void Run(Call* call, uint64_t packed = 0);

  // Runs the kernel that writes the packed workspace alone.
  void Pack(uint64_t b, uint64_t packed);

 private:
  void Launch(const KernelSpec& kernel, TVMFFISafeCallType function, const Call& call);

  const Plan& plan_;
  PrivateLibrary library_;
  std::vector<TVMFFISafeCallType> functions_;
};

}  // namespace tirgemm
