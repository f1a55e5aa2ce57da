"""Settings by which libraries spend fewer processor seconds where several test processes share few cores."""

from __future__ import annotations

FRUGAL = {
    # Idle threads of OpenBLAS sleep at once: each would look for work for 25 ms after NumPy's import and every product.
    "OPENBLAS_THREAD_TIMEOUT": "4",
    # PyTorch compiles what a test needs, not the headers that the next kernels may need, and asks no compiler which
    # vector instructions work: 7 processor seconds for the first kernel of an empty home rather than 23.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_VEC_ISA_OK": "0",
}
