// A shared object loaded from bytes: no other process can change what runs.
#pragma once

#include <string>

namespace tirgemm {

class PrivateLibrary {
 public:
  // Throws kCorrupt where the bytes are not a loadable shared object.
  explicit PrivateLibrary(const std::string& bytes);
  PrivateLibrary(const PrivateLibrary&) = delete;
  PrivateLibrary& operator=(const PrivateLibrary&) = delete;
  ~PrivateLibrary();

  // The address of a symbol, or null.
  void* Find(const std::string& symbol) const;

 private:
  void* handle_ = nullptr;
};

}  // namespace tirgemm
