#include "cpu_run.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>

#include "cpu_features.h"
#include "errors.h"
#include "thread_pool.h"

namespace tirgemm {
namespace {

constexpr int64_t kScratchAlign = 64;
// What a thread keeps between calls; a larger workspace is given back at once.
constexpr int64_t kKept = int64_t{256} << 20;

int64_t RoundUp(int64_t nbytes) { return (nbytes + kScratchAlign - 1) / kScratchAlign * kScratchAlign; }

// Scratch memory of the calling thread. It may keep one buffer: the caller waits for the kernels that use it.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(buffer_); }

  char* Get(int64_t nbytes) {
    if (nbytes <= size_) return buffer_;
    Drop();
    buffer_ = static_cast<char*>(std::aligned_alloc(kScratchAlign, static_cast<size_t>(nbytes)));
    if (!buffer_) TIRGEMM_FAIL(kLaunch) << "no " << nbytes << " bytes of workspace";
    size_ = nbytes;
    return buffer_;
  }

  void Trim() {
    if (size_ > kKept) Drop();
  }

 private:
  void Drop() {
    std::free(buffer_);
    buffer_ = nullptr;
    size_ = 0;
  }

  char* buffer_ = nullptr;
  int64_t size_ = 0;
};

thread_local Scratch scratch;

struct Trimmed {
  ~Trimmed() { scratch.Trim(); }
};

// One kernel's arguments, shared by the threads; each copies them to add its block index.
struct Blocks {
  TVMFFISafeCallType function;
  TVMFFIAny args[kMaxParams];
  int count;
  std::mutex mutex;
  std::optional<tvm::ffi::Error> error;  // the first one, moved here from the thread that raised it

  static bool Run(void* context, int64_t index) {
    Blocks& self = *static_cast<Blocks*>(context);
    TVMFFIAny args[kMaxParams + 1];
    std::memcpy(args, self.args, sizeof(TVMFFIAny) * static_cast<size_t>(self.count));
    args[self.count].type_index = kTVMFFIInt;
    args[self.count].zero_padding = 0;
    args[self.count].v_int64 = index;
    TVMFFIAny result;
    result.type_index = kTVMFFINone;
    result.zero_padding = 0;
    result.v_int64 = 0;
    if (__builtin_expect(self.function(nullptr, args, self.count + 1, &result) == 0, 1)) return true;
    tvm::ffi::Error raised = tvm::ffi::details::MoveFromSafeCallRaised();
    const std::lock_guard<std::mutex> lock(self.mutex);
    if (!self.error) self.error = std::move(raised);
    return false;
  }
};

TVMFFIAny Argument(const ParamSpec& param, const Call& call) {
  TVMFFIAny out;
  out.zero_padding = 0;
  switch (param.kind) {
    case ParamSpec::kScalar:
      out.type_index = kTVMFFIFloat;
      out.v_float64 = call.scalar[param.index];
      break;
    case ParamSpec::kSize32:
    case ParamSpec::kSize64:
      out.type_index = kTVMFFIInt;
      out.v_int64 = param.size.At(call.m);
      break;
    default:
      out.type_index = kTVMFFIOpaquePtr;
      out.v_ptr = reinterpret_cast<void*>(call.address[param.index]);
      break;
  }
  return out;
}

}  // namespace

CpuRunner::CpuRunner(const Plan& plan, const std::string& shared_object)
    : plan_(plan), library_((RequireCpuFeatures(plan.features), shared_object)) {
  for (const KernelSpec& kernel : plan.kernels) {
    for (const ParamSpec& param : kernel.params) {
      if (param.kind == ParamSpec::kTensorMap)
        TIRGEMM_FAIL(kCorrupt) << kernel.symbol << " takes a tensor map, which a CPU kernel cannot";
    }
    void* function = library_.Find("__tvm_ffi_" + kernel.symbol);
    if (!function) TIRGEMM_FAIL(kCorrupt) << "the kernel's shared object has no function " << kernel.symbol;
    functions_.push_back(reinterpret_cast<TVMFFISafeCallType>(function));
  }
}

void CpuRunner::Pack(uint64_t b, uint64_t packed) {
  Call call;
  call.m = plan_.m_low;
  const KernelSpec& kernel = plan_.kernels[plan_.pack_kernel];
  for (const ParamSpec& param : kernel.params) call.address[param.index] = param.index < kMaxTensors ? b : packed;
  Launch(kernel, functions_[plan_.pack_kernel], call);
}

void CpuRunner::Run(Call* call, uint64_t packed) {
  const Trimmed trimmed;
  if (!plan_.workspaces.empty()) {
    int64_t sizes[kMaxWorkspaces], total = kScratchAlign;
    for (size_t i = 0; i < plan_.workspaces.size(); ++i) {
      sizes[i] = plan_.workspaces[i].nbytes.At(call->m);
      if (sizes[i] < 0)
        TIRGEMM_FAIL(kCorrupt) << "workspace " << plan_.workspaces[i].name << " has " << sizes[i] << " bytes";
      if (packed && static_cast<int>(i) == plan_.packed_workspace) sizes[i] = 0;
      total += RoundUp(sizes[i]);
    }
    char* next = scratch.Get(total);
    for (size_t i = 0; i < plan_.workspaces.size(); ++i) {
      if (plan_.workspaces[i].zero) std::memset(next, 0, static_cast<size_t>(sizes[i]));
      const bool given = packed && static_cast<int>(i) == plan_.packed_workspace;
      call->address[kMaxTensors + i] = given ? packed : reinterpret_cast<uint64_t>(next);
      next += RoundUp(sizes[i]);
    }
  }
  for (size_t i = 0; i < plan_.kernels.size(); ++i) {
    if (packed && static_cast<int>(i) == plan_.pack_kernel) continue;
    Launch(plan_.kernels[i], functions_[i], *call);
  }
}

void CpuRunner::Launch(const KernelSpec& kernel, TVMFFISafeCallType function, const Call& call) {
  Blocks blocks;
  blocks.function = function;
  blocks.count = static_cast<int>(kernel.params.size());
  for (int i = 0; i < blocks.count; ++i) blocks.args[i] = Argument(kernel.params[i], call);
  const int64_t extent = kernel.grid[0].At(call.m);
  if (extent < 1 || extent > INT32_MAX)
    TIRGEMM_FAIL(kCorrupt) << kernel.symbol << ": the grid has " << extent << " blocks";
  if (!ParallelFor(&Blocks::Run, &blocks, extent, kernel.threads)) {
    TIRGEMM_FAIL(kLaunch) << "kernel " << kernel.symbol << " failed: " << std::string(blocks.error->message());
  }
}

}  // namespace tirgemm
