// The launch description as the launcher holds it: parsed once, read at every call (tirgemm/launch.py is the format).
#pragma once

#include <dlpack/dlpack.h>
#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "expression.h"

namespace tirgemm {

// Limits of one kernel: more than any GEMM needs, and what lets a call work on the stack.
constexpr int kMaxTensors = 8;
constexpr int kMaxRank = 4;
constexpr int kMaxScalars = 4;
constexpr int kMaxWorkspaces = 8;
constexpr int kMaxParams = 32;
constexpr int kMaxMaps = 8;
constexpr int kMaxMapRank = 5;
constexpr int64_t kPackedAlign = 64;

struct TensorSpec {
  std::string name;
  std::string shown;  // as errors call it: "out" for the output
  DLDataType dtype{};
  std::string dtype_name;
  int64_t element_bytes = 0;
  int ndim = 0;
  Dim shape[kMaxRank], strides[kMaxRank];
  uint64_t align = 1;
  bool output = false;
};

struct WorkspaceSpec {
  std::string name;
  Dim nbytes;
  bool zero = false;
};

struct MapSpec {
  int dtype = 0;
  uint32_t rank = 0;
  Dim dims[kMaxMapRank], strides[kMaxMapRank - 1], box[kMaxMapRank];
  uint32_t element_strides[kMaxMapRank];
  int interleave = 0, swizzle = 0, l2_promotion = 0, oob_fill = 0;
  bool sized_by_m = false;  // whether anything of it depends on m
};

struct ParamSpec {
  enum Kind { kPointer, kScalar, kSize32, kSize64, kTensorMap } kind = kPointer;
  int index = 0;  // of the address (tensors, then workspaces) or of the scalar
  Dim size;
  MapSpec map;
};

struct KernelSpec {
  std::string symbol;
  std::vector<ParamSpec> params;
  Dim grid[3];
  unsigned block[3], cluster[3];
  unsigned shared_bytes = 0;
  int threads = 0;  // a CPU's cap, 0 for none
  bool programmatic_dependent_launch = false;
  unsigned cluster_size() const { return cluster[0] * cluster[1] * cluster[2]; }
};

struct Plan {
  bool cuda = false;
  std::string arch;
  std::vector<std::string> features;
  std::vector<TensorSpec> tensors;
  std::vector<std::string> scalars;
  std::vector<WorkspaceSpec> workspaces;
  std::vector<KernelSpec> kernels;
  int64_t m_low = 0, m_high = 0;
  int m_tensor = -1, m_axis = -1;  // where a call's m is read, for a range
  // The kernel that writes a workspace from B alone, and that workspace: callers may keep it for as long as B stays the
  // same. -1 where there is none (tirgemm/launch.py says how a family names them).
  int pack_kernel = -1, packed_workspace = -1;

  // From the manifest's `kernel` part. Throws kCorrupt with what is wrong.
  static Plan Parse(const tvm::ffi::json::Object& kernel);

  int tensor_count() const { return tensor_count_; }
  int scalar_count() const { return scalar_count_; }

 private:
  int tensor_count_ = 0, scalar_count_ = 0;
};

}  // namespace tirgemm
