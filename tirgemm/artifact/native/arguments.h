// The arguments of one call: checked against the plan and taken apart.
#pragma once

#include <tvm/ffi/function.h>

#include "plan.h"

namespace tirgemm {

// Where a framework wants a call's kernels and takes its memory from.
struct Queue {
  void* stream = nullptr;
  DLPackManagedTensorAllocator allocator = nullptr;
};

struct Call {
  const Queue* queue = nullptr;  // null: those that tvm_ffi knows of this thread
  int64_t m = 0;
  DLDevice device{};
  // Tensors first, then workspaces from kMaxTensors on, which the runner fills in.
  uint64_t address[kMaxTensors + kMaxWorkspaces];
  float scalar[kMaxScalars];
};

// The tensor that an argument is; null for anything else.
const DLTensor* AsTensor(const tvm::ffi::AnyView& arg);

// A tensor of any rank seen as a matrix: the dimensions before the last as one.
struct Rows {
  DLTensor tensor;
  int64_t shape[2], strides[2];
};

// The tensor as a matrix, described in `rows`; the argument itself where it is one, and where its rows do not follow
// one another at one distance.
tvm::ffi::AnyView AsRows(const tvm::ffi::AnyView& arg, Rows* rows);

// Throws kCall for a tensor whose m is out of the range that is served.
[[noreturn]] void RefuseM(const TensorSpec& spec, const DLTensor& tensor, int64_t m, int64_t low, int64_t high);

// Throws kCallType for a wrong count, type or dtype and kCall for a wrong shape, stride, alignment, device or overlap.
void Bind(const Plan& plan, tvm::ffi::PackedArgs args, Call* call);

// The address of tensor `index` of the plan, given alone, once it fits. `m` of it must be constant.
uint64_t BindOne(const Plan& plan, int index, const tvm::ffi::AnyView& arg);

// The address of memory for the plan's packed workspace: bytes on the CPU. Throws kCallType and kCall.
uint64_t BindPacked(const Plan& plan, const tvm::ffi::AnyView& arg);

}  // namespace tirgemm
