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
  return result == cu::kInvalidImage || result == cu::kInvalidPtx || result == cu::kInvalidSource || result == cu::kNoBinaryForGpu || result == cu::kNotFound;
}

void Encode(const cu::Driver& api, const MapSpec& map, uint64_t address, int64_t m, cu::TensorMap* out) {
  uint64_t dims[kMaxMapRank], strides[kMaxMapRank];
  uint32_t box[kMaxMapRank];
  for (uint32_t i = 0; i < map.rank; ++i) dims[i] = static_cast<uint64_t>(map.dims[i].At(m));
  for (uint32_t i = 0; i < map.rank; ++i) box[i] = static_cast<uint32_t>(map.box[i].At(m));
  for (uint32_t i = 0; i + 1 < map.rank; ++i) strides[i] = static_cast<uint64_t>(map.strides[i].At(m));
  cu::Check(api.TensorMapEncodeTiled(out, map.dtype, map.rank, reinterpret_cast<void*>(address), dims, strides, box, map.element_strides,
                                     map.interleave, map.swizzle, map.l2_promotion, map.oob_fill),
            "cuTensorMapEncodeTiled");
}

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
  const cu::Stream stream = TVMFFIEnvGetStream(kDLCUDA, device);
  std::optional<CudaWorkspace> workspace;
  if (!plan_.workspaces.empty()) workspace.emplace(api, plan_, stream, call);
  for (size_t i = 0; i < plan_.kernels.size(); ++i) Launch(api, plan_.kernels[i], state.functions[i], *call, stream);
}

void CudaRunner::Launch(const cu::Driver& api, const KernelSpec& kernel, cu::Function function, const Call& call, cu::Stream stream) {
  union Slot {
    uint64_t address;
    int64_t i64;
    int32_t i32;
    float f32;
  };
  Slot slots[kMaxParams];
  cu::TensorMap maps[kMaxMaps];
  void* params[kMaxParams];
  int map_count = 0;
  const int count = static_cast<int>(kernel.params.size());
  for (int i = 0; i < count; ++i) {
    const ParamSpec& param = kernel.params[i];
    params[i] = &slots[i];
    switch (param.kind) {
      case ParamSpec::kPointer:
        slots[i].address = call.address[param.index];
        break;
      case ParamSpec::kScalar:
        slots[i].f32 = call.scalar[param.index];
        break;
      case ParamSpec::kSize32:
        slots[i].i32 = static_cast<int32_t>(param.size.At(call.m));
        break;
      case ParamSpec::kSize64:
        slots[i].i64 = param.size.At(call.m);
        break;
      case ParamSpec::kTensorMap:
        Encode(api, param.map, call.address[param.index], call.m, &maps[map_count]);
        params[i] = &maps[map_count++];
        break;
    }
  }
  cu::LaunchAttribute attributes[2];
  cu::LaunchConfig config{{0, 0, 0}, {kernel.block[0], kernel.block[1], kernel.block[2]}, kernel.shared_bytes, stream, attributes, 0};
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t extent = kernel.grid[axis].At(call.m);
    if (extent < 1 || extent > INT32_MAX) TIRGEMM_FAIL(kCorrupt) << kernel.symbol << ": grid extent " << axis << " is " << extent;
    config.grid[axis] = static_cast<unsigned>(extent);
  }
  if (kernel.cluster_size() > 1) {
    cu::LaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = cu::kLaunchClusterDimension;
    attribute.cluster = {kernel.cluster[0], kernel.cluster[1], kernel.cluster[2]};
  }
  if (kernel.programmatic_dependent_launch) {
    cu::LaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = cu::kLaunchProgrammaticStreamSerialization;
    attribute.flag = 1;
  }
  const cu::Result result = api.LaunchKernelEx(&config, function, params, nullptr);
  if (__builtin_expect(result != 0, 0)) TIRGEMM_FAIL(kLaunch) << "kernel " << kernel.symbol << " could not be launched: " << cu::Describe(result);
}

CudaRunner::PerDevice& CudaRunner::Prepare(int device) {
  if (device < 0 || device >= kMaxDevices) TIRGEMM_FAIL(kUnavailable) << "cuda:" << device << " is past the " << kMaxDevices << " devices that the launcher knows";
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
  if (!RunsOn(plan_.arch, found)) TIRGEMM_FAIL(kIncompatible) << "this kernel was built for " << plan_.arch << "; cuda:" << device << " is sm_" << found;
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
      if (BadImage(result)) TIRGEMM_FAIL(kCorrupt) << "the cubin has no usable kernel " << plan_.kernels[i].symbol << ": " << cu::Describe(result);
      cu::Check(result, "cuLibraryGetKernel");
    }
    kernels_ = std::move(kernels);
  }
  std::vector<cu::Function> functions(kernels_.size());
  for (size_t i = 0; i < kernels_.size(); ++i) {
    const KernelSpec& kernel = plan_.kernels[i];
    if (kernel.shared_bytes > kSharedWithoutAsking) {
      const cu::Result result = api.KernelSetAttribute(cu::kKernelMaxDynamicShared, static_cast<int>(kernel.shared_bytes), kernels_[i], handle);
      if (result != 0) {
        TIRGEMM_FAIL(kIncompatible) << "kernel " << kernel.symbol << " needs " << kernel.shared_bytes << " bytes of shared memory, which cuda:" << device
                                    << " (sm_" << found << ") does not give: " << cu::Describe(result);
      }
    }
    if (kernel.cluster_size() > kPortableCluster) {
      cu::Check(api.KernelSetAttribute(cu::kKernelNonPortableCluster, 1, kernels_[i], handle), "allowing a cluster of more than 8 blocks");
    }
    cu::Check(api.KernelGetFunction(&functions[i], kernels_[i]), "cuKernelGetFunction");
  }
  state->functions = std::move(functions);
}

}  // namespace tirgemm
