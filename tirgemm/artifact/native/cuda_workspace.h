// Scratch memory of one call on a CUDA stream.
#pragma once

#include "arguments.h"
#include "cuda_driver.h"
#include "plan.h"

namespace tirgemm {

// Allocates every workspace of a plan in one piece, in stream order, and gives it back at the end of the scope: the
// kernels queued meanwhile are done with it before the stream's next user gets it. The caller's framework allocates
// where the call or tvm_ffi has its allocator (so that memory is shared with it and graphs capture it), else the
// driver's pool.
class CudaWorkspace {
 public:
  CudaWorkspace(const cu::Driver& driver, const Plan& plan, cu::Stream stream, Call* call);
  CudaWorkspace(const CudaWorkspace&) = delete;
  CudaWorkspace& operator=(const CudaWorkspace&) = delete;
  ~CudaWorkspace();

 private:
  void Allocate(int64_t nbytes, const Call& call);
  void Release();

  const cu::Driver& driver_;
  cu::Stream stream_;
  DLManagedTensorVersioned* tensor_ = nullptr;
  cu::Pointer pointer_ = 0;
};

}  // namespace tirgemm
