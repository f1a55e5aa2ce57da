#include "cpu_features.h"

#include "errors.h"

namespace tirgemm {

void RequireCpuFeatures(const std::vector<std::string>& features) {
#if defined(__x86_64__)
  const std::pair<const char*, bool> kKnown[] = {
      {"sse3", __builtin_cpu_supports("sse3")},
      {"ssse3", __builtin_cpu_supports("ssse3")},
      {"sse4.1", __builtin_cpu_supports("sse4.1")},
      {"sse4.2", __builtin_cpu_supports("sse4.2")},
      {"popcnt", __builtin_cpu_supports("popcnt")},
      {"avx", __builtin_cpu_supports("avx")},
      {"avx2", __builtin_cpu_supports("avx2")},
      {"fma", __builtin_cpu_supports("fma")},
      {"bmi", __builtin_cpu_supports("bmi")},
      {"bmi2", __builtin_cpu_supports("bmi2")},
      {"avx512f", __builtin_cpu_supports("avx512f")},
      {"avx512bw", __builtin_cpu_supports("avx512bw")},
      {"avx512cd", __builtin_cpu_supports("avx512cd")},
      {"avx512dq", __builtin_cpu_supports("avx512dq")},
      {"avx512vl", __builtin_cpu_supports("avx512vl")},
      {"avx512vnni", __builtin_cpu_supports("avx512vnni")},
      {"avx512bf16", __builtin_cpu_supports("avx512bf16")},
  };
  std::string missing;
  for (const std::string& feature : features) {
    for (const auto& [name, present] : kKnown) {
      if (feature == name && !present) missing += (missing.empty() ? "" : ", ") + feature;
    }
  }
  if (!missing.empty()) TIRGEMM_FAIL(kIncompatible) << "this kernel uses CPU features that this CPU lacks: " << missing;
#else
  if (!features.empty()) TIRGEMM_FAIL(kIncompatible) << "this kernel was built for an x86-64 CPU";
#endif
}

}  // namespace tirgemm
