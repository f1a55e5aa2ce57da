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

}  // namespace tirgemm
