#include "cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "errors.h"

namespace tirgemm {

std::vector<std::pair<std::string, bool>> KnownCpuFeatures() {
#if defined(__x86_64__)
  // By CPUID itself where compilers differ in what __builtin_cpu_supports takes.
  constexpr unsigned kAvx512Fp16 = 1u << 23;  // cpuid.h of GCC 10 lacks it
  unsigned eax, ebx, ecx, edx, basic = 0, extended = 0, structured = 0;
  __get_cpuid(1, &eax, &ebx, &basic, &edx);
  __get_cpuid(0x80000001, &eax, &ebx, &extended, &edx);
  __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &structured);
  return {
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
      {"cx16", basic & bit_CMPXCHG16B},
      {"movbe", basic & bit_MOVBE},
      {"f16c", (basic & bit_F16C) && __builtin_cpu_supports("avx")},
      {"lzcnt", extended & bit_LZCNT},
      {"avx512fp16", (structured & kAvx512Fp16) && __builtin_cpu_supports("avx512f")},
  };
#else
  return {};
#endif
}

void RequireCpuFeatures(const std::vector<std::string>& features) {
#if defined(__x86_64__)
  static const auto known = KnownCpuFeatures();  // a virtual machine answers CPUID slowly
  std::string missing;
  for (const std::string& feature : features) {
    for (const auto& [name, present] : known) {
      if (feature == name && !present) missing += (missing.empty() ? "" : ", ") + feature;
    }
  }
  if (!missing.empty()) TIRGEMM_FAIL(kIncompatible) << "this kernel uses CPU features that this CPU lacks: " << missing;
#else
  if (!features.empty()) TIRGEMM_FAIL(kIncompatible) << "this kernel was built for an x86-64 CPU";
#endif
}

}  // namespace tirgemm
