#include "cuda_run.h"

#include <tvm/ffi/extra/c_env_api.h>

#include <cstdlib>
#include <optional>

#include "cuda_workspace.h"
#include "errors.h"

namespace tirgemm {
namespace {

constexpr unsigned kSharedWithoutAsking = 48 * 1024;
constexpr unsigned kPortableCluster = 8;

bool BadImage(cu::Result result) {
  return result == cu::kInvalidImage || result == cu::kInvalidPtx || result == cu::kInvalidSource ||
         result == cu::kNoBinaryForGpu || result == cu::kNotFound;
}

// Has a flag that no other thread has; false where one does.
class Borrowed {
 public:
  explicit Borrowed(std::atomic_flag* flag) : flag_(flag->test_and_set(std::memory_order_acquire) ? nullptr : flag) {}
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed() {
    if (flag_) flag_->clear(std::memory_order_release);
  }

  explicit operator bool() const { return flag_ != nullptr; }

 private:
  std::atomic_flag* flag_;
};

}  // namespace

bool RunsOn(const std::string& arch, int device) {
  char* end = nullptr;
  const int built = arch.rfind("sm_", 0) == 0 ? static_cast<int>(std::strtol(arch.c_str() + 3, &end, 10)) : 0;
  if (built < 10 || (*end != '\0' && std::string(end) != "a" && std::string(end) != "f")) {
    TIRGEMM_FAIL(kCorrupt) << "'" << arch << "' is not a CUDA architecture such as sm_90a";
  }
  // Machine code runs on later minor versions of its major one; with the suffix "a" on that very version alone.
  if (*end == 'a') return device == built;
  return device / 10 == built / 10 && device >= built;
}

void CudaRunner::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (PerDevice& state : devices_) {
    state.ready.store(false, std::memory_order_release);
    state.functions.clear();
    state.frames.clear();
  }
  kernels_.clear();
  if (library_) cu::Check(cu::driver().LibraryUnload(library_), "cuLibraryUnload");
  library_ = nullptr;
}

void CudaRunner::Run(Call* call) {
  const int device = call->device.device_id;
  PerDevice& state = Prepare(device);
  const cu::Driver& api = cu::driver();
  // Encoding tensor maps and the null stream both mean the current context.
  const cu::CurrentContext current(api, state.context);
  const cu::Stream stream = call->queue ? call->queue->stream : TVMFFIEnvGetStream(kDLCUDA, device);
  std::optional<CudaWorkspace> workspace;
  if (!plan_.workspaces.empty()) workspace.emplace(api, plan_, stream, call);
  // Who calls meanwhile evaluates everything again, which takes less than waiting.
  const Borrowed frames(&state.frames_are_used);
  for (size_t i = 0; i < plan_.kernels.size(); ++i) {
    if (__builtin_expect(static_cast<bool>(frames), 1)) {
      state.frames[i]->Launch(api, state.functions[i], *call, stream);
    } else {
      LaunchFrame(plan_.kernels[i]).Launch(api, state.functions[i], *call, stream);
    }
  }
}

CudaRunner::PerDevice& CudaRunner::Prepare(int device) {
  if (device < 0 || device >= kMaxDevices)
    TIRGEMM_FAIL(kUnavailable) << "cuda:" << device << " is past the " << kMaxDevices
                               << " devices that the launcher knows";
  PerDevice& state = devices_[device];
  if (__builtin_expect(state.ready.load(std::memory_order_acquire), 1)) return state;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!state.ready.load(std::memory_order_relaxed)) {
    Load(device, &state);
    state.ready.store(true, std::memory_order_release);
  }
  return state;
}

void CudaRunner::Load(int device, PerDevice* state) {
  const cu::Driver& api = cu::driver();
  const cu::RelaxedCapture relaxed(api);
  const int found = cu::Architecture(device);
  if (!RunsOn(plan_.arch, found))
    TIRGEMM_FAIL(kIncompatible) << "this kernel was built for " << plan_.arch << "; cuda:" << device << " is sm_"
                                << found;
  cu::Device handle = 0;
  cu::Check(api.DeviceGet(&handle, device), "cuDeviceGet");
  if (!state->context) cu::Check(api.DevicePrimaryCtxRetain(&state->context, handle), "cuDevicePrimaryCtxRetain");
  const cu::CurrentContext current(api, state->context);
  if (!library_) {
    const cu::Result result = api.LibraryLoadData(&library_, cubin_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (result != 0) library_ = nullptr;
    if (BadImage(result)) TIRGEMM_FAIL(kCorrupt) << "the driver does not take the cubin: " << cu::Describe(result);
    cu::Check(result, "cuLibraryLoadData");
  }
  if (kernels_.empty()) {
    std::vector<cu::Kernel> kernels(plan_.kernels.size());
    for (size_t i = 0; i < kernels.size(); ++i) {
      const cu::Result result = api.LibraryGetKernel(&kernels[i], library_, plan_.kernels[i].symbol.c_str());
      if (BadImage(result))
        TIRGEMM_FAIL(kCorrupt) << "the cubin has no usable kernel " << plan_.kernels[i].symbol << ": "
                               << cu::Describe(result);
      cu::Check(result, "cuLibraryGetKernel");
    }
    kernels_ = std::move(kernels);
  }
  std::vector<cu::Function> functions(kernels_.size());
  for (size_t i = 0; i < kernels_.size(); ++i) {
    const KernelSpec& kernel = plan_.kernels[i];
    if (kernel.shared_bytes > kSharedWithoutAsking) {
      const cu::Result result = api.KernelSetAttribute(cu::kKernelMaxDynamicShared,
                                                       static_cast<int>(kernel.shared_bytes), kernels_[i], handle);
      if (result != 0) {
        TIRGEMM_FAIL(kIncompatible) << "kernel " << kernel.symbol << " needs " << kernel.shared_bytes
                                    << " bytes of shared memory, which cuda:" << device << " (sm_" << found
                                    << ") does not give: " << cu::Describe(result);
      }
    }
    if (kernel.cluster_size() > kPortableCluster) {
      cu::Check(api.KernelSetAttribute(cu::kKernelNonPortableCluster, 1, kernels_[i], handle),
                "allowing a cluster of more than 8 blocks");
    }
    cu::Check(api.KernelGetFunction(&functions[i], kernels_[i]), "cuKernelGetFunction");
  }
  std::vector<std::unique_ptr<LaunchFrame>> frames;
  for (const KernelSpec& kernel : plan_.kernels) {
    frames.push_back(std::make_unique<LaunchFrame>(kernel));
    frames.back()->KeepMaps();
  }
  state->functions = std::move(functions);
  state->frames = std::move(frames);
}

}  // namespace tirgemm
