// A kernel ready to be called: its plan and what runs it.
#pragma once

#include <tvm/ffi/function.h>

#include <memory>
#include <string>

#include "cpu_run.h"
#include "cuda_run.h"
#include "errors.h"
#include "plan.h"

namespace tirgemm {

class LoadedKernel {
 public:
  // `kernel` is the manifest's part of that name, `binary` the cubin or shared object that it describes. On a CPU at
  // most `threads` run it; 0: no cap.
  LoadedKernel(const tvm::ffi::json::Object& kernel, std::string binary, int threads) : plan_(Plan::Parse(kernel)) {
    for (KernelSpec& each : plan_.kernels)
      if (threads > 0 && (each.threads == 0 || each.threads > threads)) each.threads = threads;
    if (plan_.cuda) {
      cuda_ = std::make_unique<CudaRunner>(plan_, std::move(binary));
    } else {
      cpu_ = std::make_unique<CpuRunner>(plan_, binary);
    }
  }

  void operator()(tvm::ffi::PackedArgs args, const Queue* queue = nullptr) {
    Call call;
    call.queue = queue;
    Bind(plan_, args, &call);
    if (cuda_) {
      cuda_->Run(&call);
    } else {
      cpu_->Run(&call);
    }
  }

  const Plan& plan() const { return plan_; }

  // Bytes of B packed for this kernel, which may be kept between calls; 0 where it packs nothing that depends on B
  // alone.
  int64_t PackedBytes() const {
    return plan_.pack_kernel < 0 ? 0 : plan_.workspaces[plan_.packed_workspace].nbytes.At(plan_.m_low);
  }

  // (b, bytes): packs B.
  void Pack(const tvm::ffi::AnyView& b, const tvm::ffi::AnyView& packed) {
    RequirePacks();
    for (int i = 0; i < plan_.tensor_count(); ++i) {
      if (plan_.tensors[i].name == "b") cpu_->Pack(BindOne(plan_, i, b), BindPacked(plan_, packed));
    }
  }

  // As a call, with the bytes that Pack filled behind the other arguments.
  void CallPacked(tvm::ffi::PackedArgs args) {
    RequirePacks();
    if (args.size() < 1) TIRGEMM_FAIL(kCallType) << "the packed operand is missing";
    Call call;
    Bind(plan_, args.Slice(0, args.size() - 1), &call);
    cpu_->Run(&call, BindPacked(plan_, args[args.size() - 1]));
  }

  void Close() {
    if (cuda_) cuda_->Close();
  }

 private:
  void RequirePacks() const {
    if (plan_.pack_kernel < 0) TIRGEMM_FAIL(kCall) << "this kernel does not pack B by itself";
  }

  Plan plan_;
  std::unique_ptr<CudaRunner> cuda_;
  std::unique_ptr<CpuRunner> cpu_;
};

}  // namespace tirgemm
