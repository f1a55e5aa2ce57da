#include "errors.h"

#include <tvm/ffi/error.h>

#include <atomic>

namespace tirgemm {
namespace {

std::atomic<bool> package_kinds{false};

const char* Kind(Fault fault) {
  const bool package = package_kinds.load(std::memory_order_relaxed);
  switch (fault) {
    case Fault::kCall:
      return package ? "tirgemm.CallError" : "ValueError";
    case Fault::kCallType:
      return package ? "tirgemm.CallTypeError" : "TypeError";
    case Fault::kCorrupt:
      return package ? "tirgemm.CorruptArtifact" : "RuntimeError";
    case Fault::kIncompatible:
      return package ? "tirgemm.IncompatibleArtifact" : "RuntimeError";
    case Fault::kUnavailable:
      return package ? "tirgemm.DeviceUnavailable" : "RuntimeError";
    case Fault::kLaunch:
      break;
  }
  return package ? "tirgemm.LaunchFailed" : "RuntimeError";
}

}  // namespace

void UsePackageErrorKinds() { package_kinds.store(true, std::memory_order_relaxed); }

void Throw(Fault fault, const std::string& message) { throw tvm::ffi::Error(Kind(fault), message, ""); }

}  // namespace tirgemm
