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

// TIRGEMM_FAIL(kCall) << "a: shape ..." throws at the end of the statement. The message is whole by then: what throws
// while it is written ends the statement with its own error.
#define TIRGEMM_FAIL(fault) ::tirgemm::Failure{::tirgemm::Fault::fault} &= ::tirgemm::Message()

namespace tirgemm {

class Message {
 public:
  template <typename T>
  Message& operator<<(const T& value) {
    text_ << value;
    return *this;
  }
  std::string Text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

struct Failure {
  Fault fault;

  // Binds less tightly than <<, and its right side is evaluated first.
  [[noreturn]] void operator&=(const Message& message) const { Throw(fault, message.Text()); }
};

}  // namespace tirgemm
