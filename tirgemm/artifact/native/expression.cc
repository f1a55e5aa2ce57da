#include "expression.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <string>

#include "errors.h"

namespace tirgemm {
namespace {

constexpr int kMaxDepth = 32;

}  // namespace

Dim Dim::Parse(const tvm::ffi::Any& json) {
  Dim out;
  out.Compile(json, 0);
  bool uses_m = false;
  for (const Step& step : out.code_) uses_m = uses_m || step.op == Op::kM;
  if (uses_m) return out;
  return Dim(out.Run(0));
}

// Returns the stack slots that the expression needs, so that Run's fixed stack cannot overflow.
int Dim::Compile(const tvm::ffi::Any& json, int depth) {
  if (depth > kMaxDepth) TIRGEMM_FAIL(kCorrupt) << "an expression in m is nested deeper than " << kMaxDepth;
  if (auto number = json.as<int64_t>()) {
    code_.push_back({Op::kConstant, *number});
    return 1;
  }
  if (auto word = json.as<tvm::ffi::String>()) {
    if (*word != "m") TIRGEMM_FAIL(kCorrupt) << "'" << std::string(*word) << "' is not an expression in m";
    code_.push_back({Op::kM, 0});
    return 1;
  }
  auto node = json.as<tvm::ffi::Array<tvm::ffi::Any>>();
  if (!node || node->size() != 3) TIRGEMM_FAIL(kCorrupt) << "an expression in m is [operator, left, right]";
  static const std::pair<const char*, Op> kOperators[] = {
      {"add", Op::kAdd},           {"sub", Op::kSub}, {"mul", Op::kMul}, {"floordiv", Op::kFloorDiv},
      {"ceildiv", Op::kCeilDiv}, {"mod", Op::kMod}, {"min", Op::kMin}, {"max", Op::kMax}};
  auto name = (*node)[0].as<tvm::ffi::String>();
  for (const auto& [word, op] : kOperators) {
    if (!name || *name != word) continue;
    const int left = Compile((*node)[1], depth + 1);
    const int right = Compile((*node)[2], depth + 1);
    code_.push_back({op, 0});
    return std::max(left, right + 1);
  }
  TIRGEMM_FAIL(kCorrupt) << "unknown operator in an expression in m";
  return 0;
}

int64_t Dim::Apply(Op op, int64_t left, int64_t right) {
  int64_t out = 0;
  bool overflow = false;
  switch (op) {
    case Op::kAdd:
      overflow = __builtin_add_overflow(left, right, &out);
      break;
    case Op::kSub:
      overflow = __builtin_sub_overflow(left, right, &out);
      break;
    case Op::kMul:
      overflow = __builtin_mul_overflow(left, right, &out);
      break;
    case Op::kFloorDiv:
    case Op::kCeilDiv:
    case Op::kMod: {
      if (right == 0 || (right == -1 && left == INT64_MIN))
        TIRGEMM_FAIL(kCorrupt) << "division by " << right << " in an expression in m";
      const int64_t quotient = left / right, rest = left % right;
      const bool negative = (rest != 0) && ((rest < 0) != (right < 0));
      if (op == Op::kFloorDiv) out = quotient - negative;
      if (op == Op::kCeilDiv) out = quotient + (rest != 0 && !negative);
      if (op == Op::kMod) out = negative ? rest + right : rest;
      break;
    }
    case Op::kMin:
      out = std::min(left, right);
      break;
    default:
      out = std::max(left, right);
      break;
  }
  if (overflow) TIRGEMM_FAIL(kCorrupt) << "an expression in m leaves 64 bits";
  return out;
}

int64_t Dim::Run(int64_t m) const {
  int64_t stack[kMaxDepth + 2];
  int top = 0;
  for (const Step& step : code_) {
    if (step.op == Op::kConstant) {
      stack[top++] = step.value;
    } else if (step.op == Op::kM) {
      stack[top++] = m;
    } else {
      --top;
      stack[top - 1] = Apply(step.op, stack[top - 1], stack[top]);
    }
  }
  return stack[0];
}

}  // namespace tirgemm
