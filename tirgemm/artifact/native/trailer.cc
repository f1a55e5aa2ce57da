// The single-file export: this library with a kernel appended, which it finds at the end of its own file.
//   binary | manifest | u64 size of binary | u64 size of manifest | "TIRGEMM1"
#include <dlfcn.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "errors.h"
#include "loaded_kernel.h"

namespace tirgemm {
namespace {

namespace ffi = tvm::ffi;

constexpr char kMagic[8] = {'T', 'I', 'R', 'G', 'E', 'M', 'M', '1'};
constexpr uint64_t kMost = uint64_t{1} << 30;

struct Attached {
  std::string binary, manifest;
};

Attached ReadSelf() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&ReadSelf), &info)) TIRGEMM_FAIL(kCorrupt) << "this library does not find its own file";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(info.dli_fname, "rb"), std::fclose);
  if (!file) TIRGEMM_FAIL(kCorrupt) << "cannot open " << info.dli_fname << ": " << std::strerror(errno);
  const auto read = [&](uint64_t from_end, void* out, size_t size) {
    if (std::fseek(file.get(), -static_cast<long>(from_end), SEEK_END) != 0 || std::fread(out, 1, size, file.get()) != size) {
      TIRGEMM_FAIL(kCorrupt) << info.dli_fname << " is truncated";
    }
  };
  struct {
    uint64_t binary, manifest;
    char magic[8];
  } tail;
  read(sizeof tail, &tail, sizeof tail);
  if (std::memcmp(tail.magic, kMagic, sizeof kMagic) != 0) TIRGEMM_FAIL(kCorrupt) << "no kernel is attached to " << info.dli_fname;
  if (tail.binary > kMost || tail.manifest > kMost) TIRGEMM_FAIL(kCorrupt) << "the kernel attached to " << info.dli_fname << " has an impossible size";
  Attached out;
  out.binary.resize(tail.binary);
  out.manifest.resize(tail.manifest);
  read(sizeof tail + tail.manifest, out.manifest.data(), tail.manifest);
  read(sizeof tail + tail.manifest + tail.binary, out.binary.data(), tail.binary);
  return out;
}

std::shared_ptr<LoadedKernel> LoadSelf() {
  Attached attached = ReadSelf();
  auto manifest = ffi::json::Parse(attached.manifest).as<ffi::json::Object>();
  if (!manifest) TIRGEMM_FAIL(kCorrupt) << "the attached manifest is not a JSON object";
  auto kernel = (*manifest)[ffi::String("kernel")].as<ffi::json::Object>();
  if (!kernel) TIRGEMM_FAIL(kCorrupt) << "the attached manifest has no kernel";
  return std::make_shared<LoadedKernel>(*kernel, std::move(attached.binary));
}

ffi::String Manifest() { return ReadSelf().manifest; }

}  // namespace
}  // namespace tirgemm

// Takes the tensors and scalars in the launch's order, as Kernel.raw does.
extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_main(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  TVM_FFI_SAFE_CALL_BEGIN();
  // Never destroyed, and set only by a load that succeeded.
  static const auto* kernel = new std::shared_ptr<tirgemm::LoadedKernel>(tirgemm::LoadSelf());
  (**kernel)(tvm::ffi::PackedArgs(reinterpret_cast<const tvm::ffi::AnyView*>(args), count));
  TVM_FFI_SAFE_CALL_END();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(manifest, tirgemm::Manifest);
