// What this CPU can do, by LLVM's names for it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tirgemm {

// Every feature that a CPU kernel may be built for (`_FEATURES` of detect_cpu.py), and whether this CPU has it;
// none where it is not an x86-64.
std::vector<std::pair<std::string, bool>> KnownCpuFeatures();

// Throws kIncompatible naming the features that this CPU lacks. A name that the launcher does not know passes.
void RequireCpuFeatures(const std::vector<std::string>& features);

}  // namespace tirgemm
