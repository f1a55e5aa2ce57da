// Errors of the launcher, by what a caller can do about them.
#pragma once

#include <sstream>
#include <string>

namespace tirgemm {

enum class Fault {
  kCall,          // a shape, stride, alignment or device of an argument
  kCallType,      // a type, dtype or count of the arguments
  kCorrupt,       // the launch description or the binary cannot be used
  kIncompatible,  // built for another architecture
  kUnavailable,   // no driver, or no such device
  kLaunch,        // the driver or the kernel refused to run
};

// Inside the package the kinds name tirgemm's exceptions; in an exported file, which only has tvm_ffi, Python's own.
void UsePackageErrorKinds();

[[noreturn]] void Throw(Fault fault, const std::string& message);

}  // namespace tirgemm

// TIRGEMM_FAIL(kCall) << "a: shape ..." throws at the end of the statement.
#define TIRGEMM_FAIL(fault) ::tirgemm::Failure(::tirgemm::Fault::fault)

namespace tirgemm {

class Failure {
 public:
  explicit Failure(Fault fault) : fault_(fault) {}
  Failure(const Failure&) = delete;
  Failure& operator=(const Failure&) = delete;
  [[noreturn]] ~Failure() noexcept(false) { Throw(fault_, text_.str()); }

  template <typename T>
  Failure& operator<<(const T& value) {
    text_ << value;
    return *this;
  }

 private:
  Fault fault_;
  std::ostringstream text_;
};

}  // namespace tirgemm
