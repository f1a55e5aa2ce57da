#include "plan.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

#include <cstdlib>
#include <limits>

#include "errors.h"

namespace tirgemm {
namespace {

using tvm::ffi::Any;
using tvm::ffi::String;
using tvm::ffi::json::Array;
using tvm::ffi::json::Object;

Any Field(const Object& object, const char* name) {
  auto found = object.find(String(name));
  if (found == object.end()) TIRGEMM_FAIL(kCorrupt) << "the launch description lacks '" << name << "'";
  return (*found).second;
}

template <typename T>
T As(const Any& value, const char* name) {
  auto out = value.as<T>();
  if (!out) TIRGEMM_FAIL(kCorrupt) << "'" << name << "' of the launch description has the wrong type";
  return *out;
}

std::string Text(const Object& object, const char* name) { return std::string(As<String>(Field(object, name), name)); }

Array List(const Object& object, const char* name, size_t most) {
  Array out = As<Array>(Field(object, name), name);
  if (out.size() > most)
    TIRGEMM_FAIL(kCorrupt) << "'" << name << "' has " << out.size() << " entries; the limit is " << most;
  return out;
}

int64_t Integer(const Any& value, const char* name, int64_t low, int64_t high) {
  const int64_t out = As<int64_t>(value, name);
  if (out < low || out > high)
    TIRGEMM_FAIL(kCorrupt) << "'" << name << "' is " << out << "; it must be from " << low << " to " << high;
  return out;
}

int64_t Integer(const Object& object, const char* name, int64_t low, int64_t high) {
  return Integer(Field(object, name), name, low, high);
}

// Fills `out` with a list of Dims and returns their number.
int Dims(const Object& object, const char* name, Dim* out, int most) {
  Array list = List(object, name, most);
  for (size_t i = 0; i < list.size(); ++i) out[i] = Dim::Parse(list[i]);
  return static_cast<int>(list.size());
}

void Unsigneds(const Object& object, const char* name, unsigned* out, int count) {
  Array list = List(object, name, count);
  if (static_cast<int>(list.size()) != count)
    TIRGEMM_FAIL(kCorrupt) << "'" << name << "' has " << list.size() << " entries, not " << count;
  for (int i = 0; i < count; ++i)
    out[i] = static_cast<unsigned>(Integer(list[i], name, 1, std::numeric_limits<int>::max()));
}

struct Dtype {
  const char* name;
  DLDataType type;
  int tensor_map;  // CUtensorMapDataType
};

const Dtype& FindDtype(const std::string& name) {
  static const Dtype kDtypes[] = {
      {"f16", {kDLFloat, 16, 1}, 6}, {"bf16", {kDLBfloat, 16, 1}, 9}, {"f32", {kDLFloat, 32, 1}, 7}};
  for (const Dtype& dtype : kDtypes) {
    if (name == dtype.name) return dtype;
  }
  TIRGEMM_FAIL(kCorrupt) << "dtype '" << name << "' is not f16, bf16 or f32";
  return kDtypes[0];
}

TensorSpec ParseTensor(const Object& object) {
  TensorSpec out;
  out.name = Text(object, "name");
  out.dtype_name = Text(object, "dtype");
  out.dtype = FindDtype(out.dtype_name).type;
  out.element_bytes = out.dtype.bits / 8;
  out.ndim = Dims(object, "shape", out.shape, kMaxRank);
  if (Dims(object, "strides", out.strides, kMaxRank) != out.ndim)
    TIRGEMM_FAIL(kCorrupt) << out.name << ": shape and strides differ in length";
  out.align = static_cast<uint64_t>(Integer(object, "align", 1, 4096));
  if (out.align & (out.align - 1))
    TIRGEMM_FAIL(kCorrupt) << out.name << ": alignment " << out.align << " is not a power of two";
  out.output = As<bool>(Field(object, "output"), "output");
  out.shown = out.output ? "out" : out.name;
  return out;
}

class Names {
 public:
  explicit Names(const Plan& plan) : plan_(plan) {}

  int Address(const std::string& name) const {
    for (int i = 0; i < plan_.tensor_count(); ++i) {
      if (plan_.tensors[i].name == name) return i;
    }
    for (size_t i = 0; i < plan_.workspaces.size(); ++i) {
      if (plan_.workspaces[i].name == name) return kMaxTensors + static_cast<int>(i);
    }
    TIRGEMM_FAIL(kCorrupt) << "a kernel parameter names '" << name << "', which is neither a tensor nor a workspace";
    return 0;
  }

  int Scalar(const std::string& name) const {
    for (int i = 0; i < plan_.scalar_count(); ++i) {
      if (plan_.scalars[i] == name) return i;
    }
    TIRGEMM_FAIL(kCorrupt) << "a kernel parameter names the scalar '" << name << "', which the call does not have";
    return 0;
  }

 private:
  const Plan& plan_;
};

MapSpec ParseMap(const Object& object) {
  MapSpec out;
  out.dtype = FindDtype(Text(object, "dtype")).tensor_map;
  out.rank = static_cast<uint32_t>(Dims(object, "dims", out.dims, kMaxMapRank));
  if (out.rank < 1) TIRGEMM_FAIL(kCorrupt) << "a tensor map has no dimension";
  if (Dims(object, "strides", out.strides, kMaxMapRank - 1) != static_cast<int>(out.rank) - 1)
    TIRGEMM_FAIL(kCorrupt) << "a tensor map of rank " << out.rank << " needs one stride fewer";
  if (Dims(object, "box", out.box, kMaxMapRank) != static_cast<int>(out.rank))
    TIRGEMM_FAIL(kCorrupt) << "a tensor map of rank " << out.rank << " needs a box of as many sides";
  Unsigneds(object, "element_strides", out.element_strides, static_cast<int>(out.rank));
  for (const Dim& dim : out.dims) out.sized_by_m = out.sized_by_m || !dim.constant();
  for (const Dim& dim : out.strides) out.sized_by_m = out.sized_by_m || !dim.constant();
  for (const Dim& dim : out.box) out.sized_by_m = out.sized_by_m || !dim.constant();
  out.interleave = static_cast<int>(Integer(object, "interleave", 0, 64));
  out.swizzle = static_cast<int>(Integer(object, "swizzle", 0, 64));
  out.l2_promotion = static_cast<int>(Integer(object, "l2_promotion", 0, 64));
  out.oob_fill = static_cast<int>(Integer(object, "oob_fill", 0, 64));
  return out;
}

ParamSpec ParseParam(const Object& object, const Names& names) {
  ParamSpec out;
  const std::string kind = Text(object, "kind");
  if (kind == "pointer") {
    out.kind = ParamSpec::kPointer;
    out.index = names.Address(Text(object, "name"));
  } else if (kind == "scalar") {
    out.kind = ParamSpec::kScalar;
    out.index = names.Scalar(Text(object, "name"));
  } else if (kind == "size") {
    const std::string dtype = Text(object, "dtype");
    if (dtype != "i32" && dtype != "i64")
      TIRGEMM_FAIL(kCorrupt) << "a size parameter is i32 or i64, not '" << dtype << "'";
    out.kind = dtype == "i32" ? ParamSpec::kSize32 : ParamSpec::kSize64;
    out.size = Dim::Parse(Field(object, "value"));
  } else if (kind == "tensor_map") {
    out.kind = ParamSpec::kTensorMap;
    out.index = names.Address(Text(object, "name"));
    out.map = ParseMap(object);
  } else {
    TIRGEMM_FAIL(kCorrupt) << "unknown kind of kernel parameter '" << kind << "'";
  }
  return out;
}

KernelSpec ParseKernel(const Object& object, const Names& names) {
  KernelSpec out;
  out.symbol = Text(object, "symbol");
  int maps = 0;
  for (const Any& param : List(object, "params", kMaxParams)) {
    out.params.push_back(ParseParam(As<Object>(param, "params"), names));
    maps += out.params.back().kind == ParamSpec::kTensorMap;
  }
  if (maps > kMaxMaps)
    TIRGEMM_FAIL(kCorrupt) << out.symbol << " has " << maps << " tensor maps; the limit is " << kMaxMaps;
  if (Dims(object, "grid", out.grid, 3) != 3) TIRGEMM_FAIL(kCorrupt) << out.symbol << ": a grid has three extents";
  Unsigneds(object, "block", out.block, 3);
  Unsigneds(object, "cluster", out.cluster, 3);
  out.shared_bytes = static_cast<unsigned>(Integer(object, "shared_bytes", 0, 1 << 30));
  for (const Any& entry : List(object, "attributes", 16)) {
    Array pair = As<Array>(entry, "attributes");
    if (pair.size() != 2) TIRGEMM_FAIL(kCorrupt) << out.symbol << ": an attribute is [name, number]";
    const std::string name(As<String>(pair[0], "attributes"));
    const int64_t number = Integer(pair[1], "attributes", 0, 1 << 20);
    if (name == "threads") {
      out.threads = static_cast<int>(number);
    } else if (name == "programmatic_dependent_launch") {
      out.programmatic_dependent_launch = number != 0;
    } else {
      TIRGEMM_FAIL(kCorrupt) << out.symbol << ": unknown attribute '" << name << "'";
    }
  }
  return out;
}

void ParseM(const Any& m, Plan* plan) {
  if (auto number = m.as<int64_t>()) {
    plan->m_low = plan->m_high = *number;
  } else {
    const std::string text(As<String>(m, "m"));
    const size_t dots = text.find("..");
    if (dots == std::string::npos) TIRGEMM_FAIL(kCorrupt) << "m is '" << text << "', not LOW..HIGH";
    plan->m_low = std::strtoll(text.c_str(), nullptr, 10);
    plan->m_high = std::strtoll(text.c_str() + dots + 2, nullptr, 10);
  }
  if (plan->m_low < 1 || plan->m_high < plan->m_low)
    TIRGEMM_FAIL(kCorrupt) << "m from " << plan->m_low << " to " << plan->m_high;
  if (plan->m_low == plan->m_high) return;
  for (int i = 0; i < plan->tensor_count(); ++i) {
    for (int axis = 0; axis < plan->tensors[i].ndim; ++axis) {
      if (!plan->tensors[i].shape[axis].is_m()) continue;
      plan->m_tensor = i;
      plan->m_axis = axis;
      return;
    }
  }
  TIRGEMM_FAIL(kCorrupt) << "m is a range, but no tensor has m as a dimension";
}

// Finds the kernel `pack_b`, which takes b and the workspace `packed_b` and nothing else, before any other uses that.
void FindPacked(Plan* plan) {
  if (plan->cuda) return;
  int b = -1, packed = -1;
  for (int i = 0; i < plan->tensor_count(); ++i) {
    if (plan->tensors[i].name == "b") b = i;
  }
  for (size_t i = 0; i < plan->workspaces.size(); ++i) {
    const WorkspaceSpec& workspace = plan->workspaces[i];
    if (workspace.name == "packed_b" && workspace.nbytes.constant() && !workspace.zero) packed = static_cast<int>(i);
  }
  if (b < 0 || packed < 0) return;
  for (size_t i = 0; i < plan->kernels.size(); ++i) {
    const KernelSpec& kernel = plan->kernels[i];
    bool only_these = kernel.params.size() == 2, uses_it = false;
    for (const ParamSpec& param : kernel.params) {
      const bool pointer = param.kind == ParamSpec::kPointer;
      uses_it = uses_it || (pointer && param.index == kMaxTensors + packed);
      only_these = only_these && pointer && (param.index == b || param.index == kMaxTensors + packed);
    }
    if (!uses_it) continue;
    if (kernel.symbol == "pack_b" && only_these && kernel.grid[0].constant()) {
      plan->pack_kernel = static_cast<int>(i);
      plan->packed_workspace = packed;
    }
    return;
  }
}

}  // namespace

Plan Plan::Parse(const Object& kernel) {
  Plan plan;
  const Object device = As<Object>(Field(kernel, "device"), "device");
  const Object launch = As<Object>(Field(kernel, "launch"), "launch");
  plan.cuda = Text(device, "kind") == "cuda";
  plan.arch = Text(device, "arch");
  for (const Any& feature : List(device, "features", 1024)) plan.features.emplace_back(As<String>(feature, "features"));
  for (const Any& tensor : List(launch, "tensors", kMaxTensors))
    plan.tensors.push_back(ParseTensor(As<Object>(tensor, "tensors")));
  plan.tensor_count_ = static_cast<int>(plan.tensors.size());
  if (plan.tensors.empty()) TIRGEMM_FAIL(kCorrupt) << "the launch description has no tensor";
  for (const Any& scalar : List(launch, "scalars", kMaxScalars)) {
    const Object object = As<Object>(scalar, "scalars");
    if (Text(object, "dtype") != "f32") TIRGEMM_FAIL(kCorrupt) << "scalar " << Text(object, "name") << " is not f32";
    plan.scalars.push_back(Text(object, "name"));
  }
  plan.scalar_count_ = static_cast<int>(plan.scalars.size());
  for (const Any& entry : List(launch, "workspaces", kMaxWorkspaces)) {
    const Object object = As<Object>(entry, "workspaces");
    const std::string init = Text(object, "init");
    if (init != "none" && init != "zero")
      TIRGEMM_FAIL(kCorrupt) << "a workspace starts as none or zero, not '" << init << "'";
    plan.workspaces.push_back({Text(object, "name"), Dim::Parse(Field(object, "nbytes")), init == "zero"});
  }
  const Names names(plan);
  for (const Any& entry : List(launch, "kernels", 16))
    plan.kernels.push_back(ParseKernel(As<Object>(entry, "kernels"), names));
  if (plan.kernels.empty()) TIRGEMM_FAIL(kCorrupt) << "the launch description has no kernel";
  ParseM(Field(As<Object>(Field(kernel, "gemm"), "gemm"), "m"), &plan);
  FindPacked(&plan);
  return plan;
}

}  // namespace tirgemm
