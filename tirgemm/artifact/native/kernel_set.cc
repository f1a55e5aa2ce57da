#include "kernel_set.h"

#include "errors.h"
#include "thread_pool.h"

namespace tirgemm {
namespace {

void CheckFollows(const Plan& before, const Plan& next) {
  if (next.m_low != before.m_high + 1) {
    TIRGEMM_FAIL(kCorrupt) << "a kernel for m from " << next.m_low << " to " << next.m_high
                           << " follows one for m from " << before.m_low << " to " << before.m_high;
  }
  bool same =
      next.cuda == before.cuda && next.scalars == before.scalars && next.tensor_count() == before.tensor_count();
  for (int i = 0; same && i < next.tensor_count(); ++i)
    same = next.tensors[i].name == before.tensors[i].name && next.tensors[i].ndim == before.tensors[i].ndim;
  if (!same) TIRGEMM_FAIL(kCorrupt) << "the kernels of the set do not take the same arguments";
}

}  // namespace

KernelSet::KernelSet(const std::vector<tvm::ffi::json::Object>& kernels, std::vector<std::string> binaries,
                     int threads) {
  if (kernels.empty() || kernels.size() > kMaxMembers || kernels.size() != binaries.size()) {
    TIRGEMM_FAIL(kCorrupt) << kernels.size() << " kernels with " << binaries.size()
                           << " binaries; there must be as many, at most " << kMaxMembers;
  }
  if (threads < 0) threads = OmpThreads();
  for (size_t i = 0; i < kernels.size(); ++i) {
    members_.push_back(std::make_unique<LoadedKernel>(kernels[i], std::move(binaries[i]), threads));
    if (i > 0) CheckFollows(members_[i - 1]->plan(), members_[i]->plan());
    highs_.push_back(members_[i]->plan().m_high);
  }
  const Plan &first = members_.front()->plan(), &last = members_.back()->plan();
  m_low_ = first.m_low;
  if (members_.size() == 1) return;
  // A dimension is a number of the problem's, which all kernels share, or m.
  for (int i = 0; i < first.tensor_count() && m_tensor_ < 0; ++i) {
    for (int axis = 0; axis < first.tensors[i].ndim && m_tensor_ < 0; ++axis) {
      if (first.tensors[i].shape[axis].At(first.m_low) == last.tensors[i].shape[axis].At(last.m_high)) continue;
      m_tensor_ = i;
      m_axis_ = axis;
    }
  }
  if (m_tensor_ < 0) TIRGEMM_FAIL(kCorrupt) << "no tensor of the set has m as a dimension";
}

int KernelSet::Member(int64_t m) const {
  if (m < m_low_ || m > highs_.back()) return -1;
  int index = 0;
  while (m > highs_[index]) ++index;
  return index;
}

LoadedKernel& KernelSet::Choose(tvm::ffi::PackedArgs args) {
  if (m_tensor_ >= args.size()) return *members_.front();
  const DLTensor* tensor = AsTensor(args[m_tensor_]);
  const TensorSpec& spec = members_.front()->plan().tensors[m_tensor_];
  // A wrong type, count or rank is explained by the first kernel.
  if (!tensor || tensor->ndim != spec.ndim) return *members_.front();
  const int64_t m = tensor->shape[m_axis_];
  const int index = Member(m);
  if (__builtin_expect(index < 0, 0)) RefuseM(spec, *tensor, m, m_low_, highs_.back());
  return *members_[index];
}

void KernelSet::operator()(tvm::ffi::PackedArgs args, const Queue* queue) {
  LoadedKernel& chosen = members_.size() == 1 ? *members_.front() : Choose(args);
  chosen(args, queue);
}

void KernelSet::CallRows(tvm::ffi::PackedArgs args, const Queue* queue) {
  tvm::ffi::AnyView seen[kMaxTensors + kMaxScalars];
  const int count = args.size(), d = members_.front()->plan().tensor_count() - 1;
  if (count <= d || count > kMaxTensors + kMaxScalars) return (*this)(args, queue);  // which says what is missing
  Rows rows[2];
  for (int i = 0; i < count; ++i) seen[i] = args[i];
  seen[0] = AsRows(args[0], &rows[0]);
  seen[d] = AsRows(args[d], &rows[1]);
  (*this)(tvm::ffi::PackedArgs(seen, count), queue);
}

void KernelSet::CallPacked(tvm::ffi::PackedArgs args) {
  LoadedKernel& chosen = members_.size() == 1 ? *members_.front() : Choose(args);
  chosen.CallPacked(args);
}

LoadedKernel& KernelSet::At(int64_t index) {
  if (index < 0 || index >= static_cast<int64_t>(members_.size())) {
    TIRGEMM_FAIL(kCall) << "there is no kernel " << index << " among the " << members_.size() << " of this artifact";
  }
  return *members_[index];
}

void KernelSet::Close() {
  for (const std::unique_ptr<LoadedKernel>& member : members_) member->Close();
}

}  // namespace tirgemm
