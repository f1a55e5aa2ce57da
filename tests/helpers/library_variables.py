"""Environment variables by which libraries and measuring processes spend fewer processor seconds where several test
processes share few cores, and those that libraries set themselves."""

from __future__ import annotations

import os

FRUGAL = {
    # Idle threads of OpenBLAS sleep at once: each would look for work for 25 ms after NumPy's import and every product.
    "OPENBLAS_THREAD_TIMEOUT": "4",
    # PyTorch compiles what a test needs, not the headers that the next kernels may need, and asks no compiler which
    # vector instructions work: 7 processor seconds for the first kernel of an empty home rather than 23.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_VEC_ISA_OK": "0",
    # Timing on the CPU reads up to four times the last-level cache, again and again. A virtual machine of two cores is
    # shown all of its host's: 480 MiB, of which every measuring process filled 1 to 2 GB of fresh memory.
    "TIRGEMM_CACHE_MIB": "32",
}
# Set for good: by pytest, by PyTorch as it compiles, by Intel's OpenMP as a library within a test loads it
# (transformers Numba, say).
_SET_BY_LIBRARIES = ("PYTEST_CURRENT_TEST", "TORCH", "_TORCH", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


def own_variables() -> dict[str, str]:
    """The variables that only a test may have changed."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_SET_BY_LIBRARIES)}
