// What tirgemm.artifact.native calls.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>

#include "cuda_driver.h"
#include "errors.h"
#include "kernel_set.h"
#include "thread_pool.h"

namespace tirgemm {
namespace {

namespace ffi = tvm::ffi;

// load(binaries, the manifest's `kernel` parts as JSON, threads) -> [call(tensors..., scalars...), close(),
// packed_bytes(member), pack(b, bytes, member), call_packed(tensors..., scalars..., bytes), member(m),
// call_rows(tensors..., scalars...), handle()].
ffi::Array<ffi::Function> Load(ffi::Array<ffi::Bytes> binaries, ffi::Array<ffi::String> kernels, int64_t threads) {
  UsePackageErrorKinds();
  std::vector<ffi::json::Object> objects;
  for (const ffi::String& kernel : kernels) {
    auto object = ffi::json::Parse(kernel).as<ffi::json::Object>();
    if (!object) TIRGEMM_FAIL(kCorrupt) << "the manifest's kernel is not a JSON object";
    objects.push_back(*object);
  }
  std::vector<std::string> images;
  for (const ffi::Bytes& binary : binaries) images.emplace_back(binary.data(), binary.size());
  auto loaded = std::make_shared<KernelSet>(objects, std::move(images), static_cast<int>(threads));
  return {ffi::Function::FromPacked([loaded](ffi::PackedArgs args, ffi::Any*) { (*loaded)(args); }),
          ffi::Function::FromTyped([loaded]() { loaded->Close(); }),
          ffi::Function::FromTyped([loaded](int64_t member) { return loaded->PackedBytes(member); }),
          ffi::Function::FromPacked([loaded](ffi::PackedArgs args, ffi::Any*) {
            if (args.size() != 3)
              TIRGEMM_FAIL(kCallType) << "pack takes 3 arguments (b, bytes, member), not " << args.size();
            loaded->Pack(args[0], args[1], args[2].cast<int64_t>());
          }),
          ffi::Function::FromPacked([loaded](ffi::PackedArgs args, ffi::Any*) { loaded->CallPacked(args); }),
          ffi::Function::FromTyped([loaded](int64_t m) { return static_cast<int64_t>(loaded->Member(m)); }),
          ffi::Function::FromPacked([loaded](ffi::PackedArgs args, ffi::Any*) { loaded->CallRows(args); }),
          // Of the kernel, for as long as this function lives: what tensor_calls.cc takes.
          ffi::Function::FromTyped([loaded]() { return reinterpret_cast<int64_t>(&loaded); })};
}

// The same memory under another dtype of the same size: how NumPy's bfloat16, which DLPack cannot carry, comes in.
ffi::Tensor Reinterpret(ffi::Tensor tensor, DLDataType dtype) {
  if (tensor.dtype().bits * tensor.dtype().lanes != dtype.bits * dtype.lanes)
    TIRGEMM_FAIL(kCallType) << "dtypes of different sizes";
  struct Owned {
    DLManagedTensorVersioned managed;
    ffi::Tensor source;
  };
  auto* owned = new Owned{{}, tensor};
  owned->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  owned->managed.manager_ctx = owned;
  owned->managed.deleter = [](DLManagedTensorVersioned* self) { delete static_cast<Owned*>(self->manager_ctx); };
  owned->managed.dl_tensor = *tensor.GetDLTensorPtr();
  owned->managed.dl_tensor.dtype = dtype;
  return ffi::Tensor::FromDLPackVersioned(&owned->managed);
}

ffi::Array<int64_t> CudaArchitectures() {
  UsePackageErrorKinds();
  ffi::Array<int64_t> out;
  for (int arch : cu::Architectures()) out.push_back(arch);
  return out;
}

bool ArchRunsOn(ffi::String arch, int64_t device) {
  UsePackageErrorKinds();
  return RunsOn(arch, static_cast<int>(device));
}

int64_t HostThreads() { return UsableThreads(); }

}  // namespace
}  // namespace tirgemm

TVM_FFI_DLL_EXPORT_TYPED_FUNC(load, tirgemm::Load);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(reinterpret, tirgemm::Reinterpret);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cuda_architectures, tirgemm::CudaArchitectures);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(arch_runs_on, tirgemm::ArchRunsOn);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(host_threads, tirgemm::HostThreads);
