// Integer expressions in m, compiled to postfix when the launch description is read (tirgemm/expr.py is the format).
#pragma once

#include <tvm/ffi/any.h>

#include <cstdint>
#include <vector>

namespace tirgemm {

class Dim {
 public:
  Dim() = default;
  explicit Dim(int64_t value) : value_(value) {}

  // From its JSON form: an integer, "m", or [operator, left, right]. Throws kCorrupt for anything else.
  static Dim Parse(const tvm::ffi::Any& json);

  bool constant() const { return code_.empty(); }
  // Whether this is m itself, which is where m is read from at a call.
  bool is_m() const { return code_.size() == 1; }
  // The value at one m, with Python's rounding of // and %.
  int64_t At(int64_t m) const {
    if (__builtin_expect(code_.empty(), 1)) return value_;
    return is_m() ? m : Run(m);
  }

 private:
  enum class Op : uint8_t { kConstant, kM, kAdd, kSub, kMul, kFloorDiv, kCeilDiv, kMod, kMin, kMax };
  struct Step {
    Op op;
    int64_t value;
  };

  int Compile(const tvm::ffi::Any& json, int depth);
  int64_t Run(int64_t m) const;
  static int64_t Apply(Op op, int64_t left, int64_t right);

  int64_t value_ = 0;
  std::vector<Step> code_;
};

}  // namespace tirgemm
