// The arguments of one call: checked against the plan and taken apart.
#pragma once

#include <tvm/ffi/function.h>

#include "plan.h"

namespace tirgemm {

struct Call {
  int64_t m = 0;
  DLDevice device{};
  // Tensors first, then workspaces from kMaxTensors on, which the runner fills in.
  uint64_t address[kMaxTensors + kMaxWorkspaces];
  float scalar[kMaxScalars];
};

// Throws kCallType for a wrong count, type or dtype and kCall for a wrong shape, stride, alignment, device or overlap.
void Bind(const Plan& plan, tvm::ffi::PackedArgs args, Call* call);

// The address of tensor `index` of the plan, given alone, once it fits. `m` of it must be constant.
uint64_t BindOne(const Plan& plan, int index, const tvm::ffi::AnyView& arg);

// The address of memory for the plan's packed workspace: bytes on the CPU. Throws kCallType and kCall.
uint64_t BindPacked(const Plan& plan, const tvm::ffi::AnyView& arg);

}  // namespace tirgemm
