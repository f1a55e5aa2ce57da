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

// More than tuning ever chooses; as many as the manifest may have (tirgemm/artifact/manifest.py).
constexpr int kMaxMembers = 64;

class KernelSet {
 public:
  // `kernels` are the manifest's parts of that name, of one problem each but for m: their ranges of m follow one
  // another without a gap. Throws kCorrupt where they do not. `threads` is the most of a CPU, 0 for no cap, less for
  // OmpThreads().
  KernelSet(const std::vector<tvm::ffi::json::Object>& kernels, std::vector<std::string> binaries, int threads);

  // `queue`: of a GPU's tensors, where the caller knows it.
  void operator()(tvm::ffi::PackedArgs args, const Queue* queue = nullptr);

  // As a call, with A and D of any rank, of which the dimensions before the last are taken as one.
  void CallRows(tvm::ffi::PackedArgs args, const Queue* queue = nullptr);

  // The index of the kernel that serves `m`; -1 where none does.
  int Member(int64_t m) const;

  // Of the kernel with this index as LoadedKernel says: each packs B in its own way. Throws kCall where there is none.
  int64_t PackedBytes(int64_t index) { return At(index).PackedBytes(); }
  void Pack(const tvm::ffi::AnyView& b, const tvm::ffi::AnyView& packed, int64_t index) { At(index).Pack(b, packed); }
  // The bytes must be those that were packed for the kernel that serves the call's m.
  void CallPacked(tvm::ffi::PackedArgs args);

  void Close();

 private:
  LoadedKernel& At(int64_t index);
  LoadedKernel& Choose(tvm::ffi::PackedArgs args);

  std::vector<std::unique_ptr<LoadedKernel>> members_;
  std::vector<int64_t> highs_;  // the largest m of each, ascending
  int64_t m_low_ = 0;
  int m_tensor_ = -1, m_axis_ = -1;  // where a call's m is read, where there is a choice
};

}  // namespace tirgemm
