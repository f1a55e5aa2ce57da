// What this CPU can do, by LLVM's names for it.
#pragma once

#include <string>
#include <vector>

namespace tirgemm {

// Throws kIncompatible naming the features that this CPU lacks. A name that the launcher does not know passes: only
// what generated code really uses is listed here.
void RequireCpuFeatures(const std::vector<std::string>& features);

}  // namespace tirgemm
