// The single-file export: this library with the kernels of one artifact appended, which it finds at the end of its own
// file.
//   binaries | manifest | u64 size of each binary | u64 number of binaries | u64 size of manifest | "TIRGEMM2"
#include <dlfcn.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "errors.h"
#include "kernel_set.h"

namespace tirgemm {
namespace {

namespace ffi = tvm::ffi;

constexpr char kMagic[8] = {'T', 'I', 'R', 'G', 'E', 'M', 'M', '2'};
constexpr uint64_t kMost = uint64_t{1} << 30;

struct Attached {
  std::vector<std::string> binaries;
  std::string manifest;
};

std::string OwnPath() {
  Dl_info info;
  if (!dladdr(kMagic, &info)) return "";
  const std::unique_ptr<char, void (*)(void*)> real(realpath(info.dli_fname, nullptr), std::free);
  return real ? real.get() : info.dli_fname;
}

// Asked as this library is loaded: the path may be relative, and the process's folder may change.
const std::string own_path = OwnPath();

Attached ReadSelf() {
  if (own_path.empty()) TIRGEMM_FAIL(kCorrupt) << "this library does not find its own file";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(own_path.c_str(), "rb"), std::fclose);
  if (!file) TIRGEMM_FAIL(kCorrupt) << "cannot open " << own_path << ": " << std::strerror(errno);
  const auto read = [&](uint64_t from_end, void* out, size_t size) {
    if (std::fseek(file.get(), -static_cast<long>(from_end), SEEK_END) != 0 ||
        std::fread(out, 1, size, file.get()) != size) {
      TIRGEMM_FAIL(kCorrupt) << own_path << " is truncated";
    }
  };
  struct {
    uint64_t count, manifest;
    char magic[8];
  } tail;
  read(sizeof tail, &tail, sizeof tail);
  if (std::memcmp(tail.magic, kMagic, sizeof kMagic) != 0)
    TIRGEMM_FAIL(kCorrupt) << "no kernel is attached to " << own_path;
  uint64_t sizes[kMaxMembers];
  if (tail.manifest > kMost || tail.count < 1 || tail.count > kMaxMembers)
    TIRGEMM_FAIL(kCorrupt) << "the kernel attached to " << own_path << " has an impossible size";
  uint64_t from_end = sizeof tail + tail.count * sizeof(uint64_t);
  read(from_end, sizes, tail.count * sizeof(uint64_t));
  Attached out;
  out.manifest.resize(tail.manifest);
  from_end += tail.manifest;
  read(from_end, out.manifest.data(), tail.manifest);
  out.binaries.resize(tail.count);
  for (uint64_t i = tail.count; i-- > 0;) {
    if (sizes[i] > kMost)
      TIRGEMM_FAIL(kCorrupt) << "the kernel attached to " << own_path << " has an impossible size";
    from_end += sizes[i];
    out.binaries[i].resize(sizes[i]);
    read(from_end, out.binaries[i].data(), sizes[i]);
  }
  return out;
}

ffi::json::Object Member(const ffi::json::Object& object, const char* name) {
  const auto member = object.find(ffi::String(name));
  auto value = member == object.end() ? std::optional<ffi::json::Object>() : (*member).second.as<ffi::json::Object>();
  if (!value) TIRGEMM_FAIL(kCorrupt) << "the attached manifest has no " << name;
  return *value;
}

std::shared_ptr<KernelSet> LoadSelf() {
  Attached attached = ReadSelf();
  auto manifest = ffi::json::Parse(attached.manifest).as<ffi::json::Object>();
  if (!manifest) TIRGEMM_FAIL(kCorrupt) << "the attached manifest is not a JSON object";
  std::vector<ffi::json::Object> kernels;
  const auto members = manifest->find(ffi::String("members"));
  if (members == manifest->end()) {
    kernels.push_back(Member(*manifest, "kernel"));
  } else {
    auto list = (*members).second.as<ffi::json::Array>();
    if (!list) TIRGEMM_FAIL(kCorrupt) << "the members of the attached manifest are not a list";
    for (const ffi::Any& entry : *list) {
      auto member = entry.as<ffi::json::Object>();
      if (!member) TIRGEMM_FAIL(kCorrupt) << "a member of the attached manifest is not an object";
      kernels.push_back(Member(*member, "kernel"));
    }
  }
  return std::make_shared<KernelSet>(kernels, std::move(attached.binaries));
}

ffi::String Manifest() { return ReadSelf().manifest; }

}  // namespace
}  // namespace tirgemm

// Takes the tensors and scalars in the launch's order, as Kernel.raw does.
extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_main(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  TVM_FFI_SAFE_CALL_BEGIN();
  // Never destroyed, and set only by a load that succeeded.
  static const auto* kernel = new std::shared_ptr<tirgemm::KernelSet>(tirgemm::LoadSelf());
  (**kernel)(tvm::ffi::PackedArgs(reinterpret_cast<const tvm::ffi::AnyView*>(args), count));
  TVM_FFI_SAFE_CALL_END();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(manifest, tirgemm::Manifest);
