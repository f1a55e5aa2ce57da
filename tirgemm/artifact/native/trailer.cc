// The single-file export: this library with the kernels of one artifact appended, which it finds at the end of its own
// file.
//   binaries | manifest | u64 size of each binary | u64 number of binaries | u64 size of manifest | "TIRGEMM2"
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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

struct OwnFile {
  std::string path;
  std::string_view bytes;
};

OwnFile MapOwnFile() {
  Dl_info info;
  if (!dladdr(kMagic, &info)) return {};
  OwnFile own{info.dli_fname, {}};
  const int file = open(info.dli_fname, O_RDONLY | O_CLOEXEC);
  if (file < 0) return own;
  struct stat status;
  const size_t size = fstat(file, &status) == 0 ? status.st_size : 0;
  void* bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (bytes != MAP_FAILED) own.bytes = {static_cast<const char*>(bytes), size};
  close(file);
  return own;
}

// Mapped as this library is loaded, and never unmapped: later its path, which may be relative, may be another file's.
const OwnFile own_file = MapOwnFile();

Attached ReadSelf() {
  const std::string& own_path = own_file.path;
  const std::string_view bytes = own_file.bytes;
  if (bytes.empty()) TIRGEMM_FAIL(kCorrupt) << "this library does not find its own file, " << own_path;
  const auto read = [&](uint64_t from_end, void* out, size_t size) {
    if (from_end > bytes.size()) TIRGEMM_FAIL(kCorrupt) << own_path << " is truncated";
    std::memcpy(out, bytes.data() + bytes.size() - from_end, size);
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
  return std::make_shared<KernelSet>(kernels, std::move(attached.binaries), -1);
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
