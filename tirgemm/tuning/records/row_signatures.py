"""Row signatures of invariant kernels: two of one row class on one architecture must give a row the same bits.

What each kernel's certificate holds was measured on it alone; kernels tuned for different m meet where they are stored.
"""

from __future__ import annotations

from collections.abc import Iterable

from tirgemm.errors import VerificationFailed
from tirgemm.tuning.records import Certificate, KernelRecord


def row_signature(certificate: Certificate | None) -> str:
    """The hash of the bits of a fixed row; empty where the certificate has none."""
    tests = certificate.tests if certificate else ()
    return next((str(test["signature"]) for test in tests if test.get("signature")), "")


def require_same_rows(kernel: KernelRecord, stored: Iterable[KernelRecord]) -> None:
    """Raise VerificationFailed where a ``stored`` kernel gives a row other bits than ``kernel``, which is invariant.

    Those of another row class or architecture, or without a signature, are passed over.
    """
    ours = row_signature(kernel.certificate)
    if not kernel.gemm.invariant or not ours:
        return
    wanted = (kernel.gemm.row_class, kernel.device.arch)
    for other in stored:
        theirs = row_signature(other.certificate)
        if theirs and theirs != ours and (other.gemm.row_class, other.device.arch) == wanted:
            raise VerificationFailed(
                f"{kernel.gemm} is invariant, and kernel {other.id} of {other.gemm} gives a row other bits: signature "
                f"{theirs[:16]} of {other.config}, {ours[:16]} of {kernel.config}; if an older tirgemm made the stored "
                f"kernel, delete it and tune {other.gemm} anew"
            )
