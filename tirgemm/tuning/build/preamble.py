"""CUDA source without the C++ core libraries that TVM's preamble includes for it.

``cuda/std/type_traits``, ``cuda/barrier`` and ``cooperative_groups.h`` open over a thousand files, and take most of
a small kernel's compile, for the names of integer types and the rank of a thread in its block. Both are said in plain
CUDA C++ instead, as those headers define them, so that the instructions are the same.
"""

from __future__ import annotations

import re

# As TVM writes them: tvm/backend/cuda/codegen/header.py and tvm/backend/cuda/cpp/builtins.py.
_GROUPS = "#include <cuda/barrier>\n#include <cooperative_groups.h>\n"
_STANDARD = """\
  #include <cuda/std/cstdint>
  using cuda::std::uint8_t;
  using cuda::std::uint16_t;
  using cuda::std::uint32_t;
  using cuda::std::uint64_t;
  using cuda::std::int8_t;
  using cuda::std::int16_t;
  using cuda::std::int32_t;
  using cuda::std::int64_t;

  #include <cuda/std/type_traits>
  namespace std {
    using cuda::std::is_same;
    using cuda::std::is_same_v;
    using cuda::std::is_integral;
    using cuda::std::is_signed;
    using cuda::std::is_unsigned;
    using cuda::std::is_floating_point;
    using cuda::std::enable_if;
    using cuda::std::conditional;
  }
"""
_THREAD_RANK = "    namespace cg = cooperative_groups;\n    return cg::this_thread_block().thread_rank();"

# As cuda/std/cstdint and cooperative_groups.h define them.
_INTEGERS = """\
  using int8_t = signed char;
  using int16_t = signed short;
  using int32_t = signed int;
  using int64_t = signed long long;
  using uint8_t = unsigned char;
  using uint16_t = unsigned short;
  using uint32_t = unsigned int;
  using uint64_t = unsigned long long;
"""
# Nobody reads a block's tag and memory. Without them the compiler orders a kernel's sums and registers otherwise.
_BLOCK = """\
namespace cooperative_groups {
struct __align__(8) thread_block {
  unsigned int unused : 1, type : 7, : 0;
  void* const memory;
  __device__ __forceinline__ thread_block() : memory(nullptr) {
    type = 4;
    unused = 0;
  }
  static __device__ __forceinline__ unsigned int thread_rank() {
    return threadIdx.z * blockDim.y * blockDim.x + threadIdx.y * blockDim.x + threadIdx.x;
  }
};
__device__ __forceinline__ thread_block this_thread_block() { return thread_block(); }
}
"""

# What only the libraries define: their namespaces, headers and macros, and cstdint's other names. PTX has a ``.cg``
# too.
_LIBRARY = re.compile(
    r"\b(?:cuda|std|(?<!cp\.async\.)cg|cooperative_groups)\b(?!\.h)|\b_CCCL_|\bu?int(?:ptr|max|_(?:fast|least)\d+)_t\b"
    r"|\bU?INT(?:PTR|MAX|_?(?:FAST|LEAST)?\d+)_(?:C|MIN|MAX)\b|\b(?:SIZE_MAX|PTRDIFF_(?:MIN|MAX))\b"
)


def without_libraries(source: str) -> str:
    """``source``, which TVM wrote, without the libraries' headers; as it was where anything in it may need them."""
    rest = source
    for known in (_GROUPS, _STANDARD, _THREAD_RANK):
        rest = rest.replace(known, "")
    if _LIBRARY.search(rest):
        return source
    return source.replace(_GROUPS, _BLOCK).replace(_STANDARD, _INTEGERS)
