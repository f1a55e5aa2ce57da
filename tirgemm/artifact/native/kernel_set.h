// The kernels of one artifact, of which a call runs the one that serves its m.
#pragma once

#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "loaded_kernel.h"

namespace tirgemm {

// More than tuning ever chooses; the manifest's own limit is smaller (tirgemm/artifact/manifest.py).
constexpr int kMaxMembers = 64;

class KernelSet {
 public:
  // `kernels` are the manifest's parts of that name, of one problem each but for m: their ranges of m follow one another
  // without a gap. Throws kCorrupt where they do not.
  KernelSet(const std::vector<tvm::ffi::json::Object>& kernels, std::vector<std::string> binaries);

  void operator()(tvm::ffi::PackedArgs args);

  // The index of the kernel that serves `m`; -1 where none does.
  int Member(int64_t m) const;

  // Of a single kernel as LoadedKernel says. The kernels of a set pack B each in its own way: a set packs nothing.
  int64_t PackedBytes() const { return members_.size() == 1 ? members_.front()->PackedBytes() : 0; }
  void Pack(const tvm::ffi::AnyView& b, const tvm::ffi::AnyView& packed) { Alone().Pack(b, packed); }
  void CallPacked(tvm::ffi::PackedArgs args) { Alone().CallPacked(args); }

  void Close();

 private:
  LoadedKernel& Alone();
  LoadedKernel& Choose(tvm::ffi::PackedArgs args);

  std::vector<std::unique_ptr<LoadedKernel>> members_;
  std::vector<int64_t> highs_;  // the largest m of each, ascending
  int64_t m_low_ = 0;
  int m_tensor_ = -1, m_axis_ = -1;  // where a call's m is read, where there is a choice
};

}  // namespace tirgemm
