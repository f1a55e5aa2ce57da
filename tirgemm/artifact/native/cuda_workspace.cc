#include "cuda_workspace.h"

#include <tvm/ffi/extra/c_env_api.h>

#include "errors.h"

namespace tirgemm {
namespace {

constexpr int64_t kWorkspaceAlign = 256;

}  // namespace

CudaWorkspace::CudaWorkspace(const cu::Driver& driver, const Plan& plan, cu::Stream stream, Call* call)
    : driver_(driver), stream_(stream) {
  int64_t sizes[kMaxWorkspaces], total = 0;
  const int count = static_cast<int>(plan.workspaces.size());
  for (int i = 0; i < count; ++i) {
    sizes[i] = plan.workspaces[i].nbytes.At(call->m);
    if (sizes[i] < 0)
      TIRGEMM_FAIL(kCorrupt) << "workspace " << plan.workspaces[i].name << " has " << sizes[i] << " bytes";
    total += (sizes[i] + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
  }
  if (total == 0) total = kWorkspaceAlign;
  Allocate(total, *call);
  uint64_t next = pointer_;
  for (int i = 0; i < count; ++i) {
    call->address[kMaxTensors + i] = next;
    if (plan.workspaces[i].zero && sizes[i] > 0) {
      const cu::Result result = driver_.MemsetD8Async(next, 0, static_cast<size_t>(sizes[i]), stream_);
      if (result != 0) Release();
      cu::Check(result, "cuMemsetD8Async");
    }
    next += static_cast<uint64_t>((sizes[i] + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign);
  }
}

void CudaWorkspace::Allocate(int64_t nbytes, const Call& call) {
  std::string reason;
  DLPackManagedTensorAllocator allocator = call.queue ? call.queue->allocator : nullptr;
  if (!allocator) allocator = TVMFFIEnvGetDLPackManagedTensorAllocator();
  if (allocator) {
    DLTensor prototype{};
    prototype.device = {kDLCUDA, call.device.device_id};
    prototype.ndim = 1;
    prototype.dtype = {kDLUInt, 8, 1};
    prototype.shape = &nbytes;
    const auto set_reason = [](void* text, const char*, const char* message) {
      *static_cast<std::string*>(text) = message;
    };
    if (allocator(&prototype, &tensor_, &reason, set_reason) == 0 && tensor_) {
      pointer_ = reinterpret_cast<uint64_t>(tensor_->dl_tensor.data) + tensor_->dl_tensor.byte_offset;
      return;
    }
    tensor_ = nullptr;
  } else {
    const cu::Result result = driver_.MemAllocAsync(&pointer_, static_cast<size_t>(nbytes), stream_);
    if (result == 0) return;
    pointer_ = 0;
    reason = cu::Describe(result);
  }
  TIRGEMM_FAIL(kLaunch) << "no " << nbytes << " bytes of workspace on cuda:" << call.device.device_id << ": " << reason;
}

void CudaWorkspace::Release() {
  if (tensor_) {
    if (tensor_->deleter) tensor_->deleter(tensor_);
  } else if (pointer_) {
    driver_.MemFreeAsync(pointer_, stream_);
  }
  tensor_ = nullptr;
  pointer_ = 0;
}

CudaWorkspace::~CudaWorkspace() { Release(); }

}  // namespace tirgemm
