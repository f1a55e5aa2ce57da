// The few functions of libcuda that a launch needs, found at run time: no CUDA header, nothing linked.
// Layouts and numbers are those of cuda.h, CUDA 12 and later.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tirgemm::cu {

using Result = int;
using Device = int;
using Context = struct ContextImpl*;
using Library = struct LibraryImpl*;
using Kernel = struct KernelImpl*;
using Function = struct FunctionImpl*;
using Stream = void*;
using Pointer = uint64_t;

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int flag;
  };
};

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

static_assert(sizeof(TensorMap) == 128 && sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56,
              "the driver's ABI");

constexpr int kLaunchClusterDimension = 4;
constexpr int kLaunchProgrammaticStreamSerialization = 6;
constexpr int kDeviceMajor = 75;
constexpr int kDeviceMinor = 76;
constexpr int kKernelMaxDynamicShared = 8;
constexpr int kKernelNonPortableCluster = 14;
constexpr int kCaptureModeRelaxed = 2;
constexpr Result kInvalidImage = 200, kNoBinaryForGpu = 209, kInvalidPtx = 218, kNotFound = 500, kInvalidSource = 300;

struct Driver {
  Result (*GetErrorName)(Result, const char**);
  Result (*Init)(unsigned);
  Result (*DeviceGetCount)(int*);
  Result (*DeviceGet)(Device*, int);
  Result (*DeviceGetAttribute)(int*, int, Device);
  Result (*DevicePrimaryCtxRetain)(Context*, Device);
  Result (*CtxGetCurrent)(Context*);
  Result (*CtxPushCurrent)(Context);
  Result (*CtxPopCurrent)(Context*);
  Result (*LibraryLoadData)(Library*, const void*, int*, void**, unsigned, int*, void**, unsigned);
  Result (*LibraryUnload)(Library);
  Result (*LibraryGetKernel)(Kernel*, Library, const char*);
  Result (*KernelGetFunction)(Function*, Kernel);
  Result (*KernelSetAttribute)(int, int, Kernel, Device);
  Result (*ThreadExchangeStreamCaptureMode)(int*);
  Result (*LaunchKernelEx)(const LaunchConfig*, Function, void**, void**);
  Result (*TensorMapEncodeTiled)(TensorMap*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*,
                                 const uint32_t*, int, int, int, int);
  Result (*MemAllocAsync)(Pointer*, size_t, Stream);
  Result (*MemFreeAsync)(Pointer, Stream);
  Result (*MemsetD8Async)(Pointer, unsigned char, size_t, Stream);
};

// The driver, initialised. Throws kUnavailable where there is none or it is too old.
const Driver& driver();

// The name and number of a driver error.
std::string Describe(Result result);

// Throws kLaunch naming `what` unless `result` is success.
void Check(Result result, const char* what);

// The architecture of one device, 90 for sm_90.
int Architecture(int device);

// The architectures of the devices here; empty without a driver.
std::vector<int> Architectures();

// Makes a context current for a scope, and costs one query where it already is.
class CurrentContext {
 public:
  CurrentContext(const Driver& driver, Context wanted) : driver_(driver) {
    Context current = nullptr;
    driver.CtxGetCurrent(&current);
    if (__builtin_expect(current != wanted, 0)) {
      Check(driver.CtxPushCurrent(wanted), "cuCtxPushCurrent");
      pushed_ = true;
    }
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  ~CurrentContext() {
    Context popped;
    if (pushed_) driver_.CtxPopCurrent(&popped);
  }

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

// Lets a scope load and allocate while the calling thread captures a graph.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { driver_.ThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { driver_.ThreadExchangeStreamCaptureMode(&mode_); }

 private:
  const Driver& driver_;
  int mode_ = kCaptureModeRelaxed;
};

}  // namespace tirgemm::cu
