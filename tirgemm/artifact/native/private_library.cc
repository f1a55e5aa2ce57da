#include "private_library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <tvm/ffi/extra/module.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "errors.h"

namespace tirgemm {
namespace {

constexpr unsigned kCloseOnExec = 1, kAllowSealing = 2;  // MFD_*
constexpr int kAddSeals = 1033;                          // F_ADD_SEALS
constexpr int kSealAll = 1 | 2 | 4 | 8;                  // seal, shrink, grow, write

// An anonymous file, or an unlinked one where the kernel has none: mkstemp creates it with mode 0600.
int Anonymous(bool* sealable) {
  int file = static_cast<int>(syscall(SYS_memfd_create, "tirgemm-kernel", kCloseOnExec | kAllowSealing));
  *sealable = file >= 0;
  if (file >= 0) return file;
  const char* folder = std::getenv("TMPDIR");
  std::string path = std::string(folder && *folder ? folder : "/tmp") + "/tirgemm-XXXXXX";
  file = mkostemp(path.data(), O_CLOEXEC);
  if (file >= 0) unlink(path.c_str());
  return file;
}

bool WriteAll(int file, const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote = write(file, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    done += static_cast<size_t>(wrote);
  }
  return true;
}

// The path of an open file, spelled by its inode, as no other library of this process can be while it is loaded: the
// loader takes two libraries of one spelling for one, whatever the descriptor's number stands for by then.
std::string OwnSpelling(int file) {
  struct stat status = {};
  if (fstat(file, &status) != 0) TIRGEMM_FAIL(kLaunch) << "no private file for the kernel: " << std::strerror(errno);
  std::string path = "/proc/self/fd";
  for (ino_t left = status.st_ino; left; left >>= 1) path += left & 1 ? "/." : "/";
  return path + "/" + std::to_string(file);
}

}  // namespace

PrivateLibrary::PrivateLibrary(const std::string& bytes) {
  bool sealable = false;
  const int file = Anonymous(&sealable);
  if (file < 0) TIRGEMM_FAIL(kLaunch) << "no private file for the kernel: " << std::strerror(errno);
  const bool written = WriteAll(file, bytes) && (!sealable || fcntl(file, kAddSeals, kSealAll) == 0);
  const int error = errno;
  if (written) handle_ = dlopen(OwnSpelling(file).c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string reason = handle_ ? "" : (written ? dlerror() : std::strerror(error));
  close(file);
  if (!written) TIRGEMM_FAIL(kLaunch) << "the kernel could not be copied into a private file: " << reason;
  if (!handle_) TIRGEMM_FAIL(kCorrupt) << "the kernel's shared object does not load: " << reason;
  // What tvm_ffi's own loader does: generated code reaches the error functions through pointers that the host fills in.
  tvm::ffi::Module::VisitContextSymbols(
      tvm::ffi::TypedFunction<void(tvm::ffi::String, void*)>([this](tvm::ffi::String name, void* address) {
        if (void** slot = static_cast<void**>(dlsym(handle_, name.c_str()))) *slot = address;
      }));
}

PrivateLibrary::~PrivateLibrary() {
  if (handle_) dlclose(handle_);
}

void* PrivateLibrary::Find(const std::string& symbol) const { return dlsym(handle_, symbol.c_str()); }

}  // namespace tirgemm
