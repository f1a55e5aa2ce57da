// A kernel ready to be called: its plan and what runs it.
#pragma once

#include <tvm/ffi/function.h>

#include <memory>
#include <string>

#include "cpu_run.h"
#include "cuda_run.h"
#include "plan.h"

namespace tirgemm {

class LoadedKernel {
 public:
  // `kernel` is the manifest's part of that name, `binary` the cubin or shared object that it describes.
  LoadedKernel(const tvm::ffi::json::Object& kernel, std::string binary) : plan_(Plan::Parse(kernel)) {
    if (plan_.cuda) {
      cuda_ = std::make_unique<CudaRunner>(plan_, std::move(binary));
    } else {
      cpu_ = std::make_unique<CpuRunner>(plan_, binary);
    }
  }

  void operator()(tvm::ffi::PackedArgs args) {
    Call call;
    Bind(plan_, args, &call);
    if (cuda_) {
      cuda_->Run(&call);
    } else {
      cpu_->Run(&call);
    }
  }

  const Plan& plan() const { return plan_; }

  void Close() {
    if (cuda_) cuda_->Close();
  }

 private:
  Plan plan_;
  std::unique_ptr<CudaRunner> cuda_;
  std::unique_ptr<CpuRunner> cpu_;
};

}  // namespace tirgemm
