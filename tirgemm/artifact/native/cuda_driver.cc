#include "cuda_driver.h"

#include <dlfcn.h>

#include "errors.h"

namespace tirgemm::cu {
namespace {

// 12.0 has every function here.
constexpr int kVersion = 12000;

struct Loaded {
  Driver driver{};
  std::string missing;  // why there is no driver

  Loaded() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      missing = std::string("the NVIDIA driver is not here: ") + dlerror();
      return;
    }
    using GetProcAddress = Result (*)(const char*, void**, int, uint64_t, int*);
    const auto find = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
    if (!find) {
      missing = "the NVIDIA driver is older than CUDA 12";
      return;
    }
    const auto bind = [&](auto& function, const char* name) {
      void* address = nullptr;
      int status = 0;
      if ((find(name, &address, kVersion, 0, &status) != 0 || !address) && missing.empty()) {
        missing = std::string("the NVIDIA driver lacks ") + name + "; it must be of CUDA 12 or later";
      }
      function = reinterpret_cast<std::decay_t<decltype(function)>>(address);
    };
    bind(driver.GetErrorName, "cuGetErrorName");
    bind(driver.Init, "cuInit");
    bind(driver.DeviceGetCount, "cuDeviceGetCount");
    bind(driver.DeviceGet, "cuDeviceGet");
    bind(driver.DeviceGetAttribute, "cuDeviceGetAttribute");
    bind(driver.DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    bind(driver.CtxGetCurrent, "cuCtxGetCurrent");
    bind(driver.CtxPushCurrent, "cuCtxPushCurrent");
    bind(driver.CtxPopCurrent, "cuCtxPopCurrent");
    bind(driver.LibraryLoadData, "cuLibraryLoadData");
    bind(driver.LibraryUnload, "cuLibraryUnload");
    bind(driver.LibraryGetKernel, "cuLibraryGetKernel");
    bind(driver.KernelGetFunction, "cuKernelGetFunction");
    bind(driver.KernelSetAttribute, "cuKernelSetAttribute");
    bind(driver.ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
    bind(driver.LaunchKernelEx, "cuLaunchKernelEx");
    bind(driver.TensorMapEncodeTiled, "cuTensorMapEncodeTiled");
    bind(driver.MemAllocAsync, "cuMemAllocAsync");
    bind(driver.MemFreeAsync, "cuMemFreeAsync");
    bind(driver.MemsetD8Async, "cuMemsetD8Async");
    if (!missing.empty()) return;
    const Result result = driver.Init(0);
    if (result == 0) return;
    const char* name = nullptr;
    driver.GetErrorName(result, &name);
    missing = std::string("the NVIDIA driver does not start: ") + (name ? name : "?") + " (" + std::to_string(result) +
              ")";
  }
};

const Loaded& loaded() {
  // Never destroyed: kernels may outlive static destruction.
  static const Loaded* instance = new Loaded();
  return *instance;
}

}  // namespace

const Driver& driver() {
  const Loaded& found = loaded();
  if (__builtin_expect(!found.missing.empty(), 0)) TIRGEMM_FAIL(kUnavailable) << found.missing;
  return found.driver;
}

std::string Describe(Result result) {
  const char* name = nullptr;
  driver().GetErrorName(result, &name);
  return std::string(name ? name : "an unknown error") + " (" + std::to_string(result) + ")";
}

void Check(Result result, const char* what) {
  if (__builtin_expect(result == 0, 1)) return;
  TIRGEMM_FAIL(kLaunch) << what << " failed: " << Describe(result);
}

int Architecture(int device) {
  const Driver& api = driver();
  Device handle = 0;
  const Result result = api.DeviceGet(&handle, device);
  if (result != 0) TIRGEMM_FAIL(kUnavailable) << "cuda:" << device << " is not here: " << Describe(result);
  int major = 0, minor = 0;
  Check(api.DeviceGetAttribute(&major, kDeviceMajor, handle), "cuDeviceGetAttribute");
  Check(api.DeviceGetAttribute(&minor, kDeviceMinor, handle), "cuDeviceGetAttribute");
  return 10 * major + minor;
}

std::vector<int> Architectures() {
  std::vector<int> out;
  if (!loaded().missing.empty()) return out;
  int count = 0;
  Check(driver().DeviceGetCount(&count), "cuDeviceGetCount");
  for (int device = 0; device < count; ++device) out.push_back(Architecture(device));
  return out;
}

}  // namespace tirgemm::cu
