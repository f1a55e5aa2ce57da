"""Row signatures of invariant kernels: two of one row class on one architecture must give a row the same bits.

What each kernel's certificate holds was measured on it alone; kernels tuned for different m meet where they are stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tirgemm.errors import VerificationFailed
from tirgemm.tuning.records import Certificate, KernelRecord


class RowsDiffer(VerificationFailed):
    """Invariant kernels give a row different bits.

    ``expected`` is the signature that such a kernel is to have: that of what is stored, where nothing is, that of most
    members of the set. Empty where what is stored has several itself.
    """

    def __init__(self, message: str, expected: str = "") -> None:
        super().__init__(message)
        self.expected = expected


def row_signatures(certificate: Certificate | None) -> tuple[str, ...]:
    """The hashes of the bits of a fixed row, of a set's joined certificate one for each member; empty where it has
    none."""
    tests = certificate.tests if certificate else ()
    return tuple(str(test["signature"]) for test in tests if test.get("signature"))


def row_signature(certificate: Certificate | None) -> str:
    """That of the certificate of one kernel; empty where it has none."""
    return next(iter(row_signatures(certificate)), "")


def require_same_rows(kernel: KernelRecord, stored: Iterable[KernelRecord]) -> None:
    """Raise RowsDiffer where a ``stored`` kernel gives a row other bits than ``kernel``, which is invariant, or where
    the members of ``kernel`` do not give it the same. All members of all sets are compared.

    Those of another row class or architecture, or without a signature, are passed over.
    """
    ours = row_signatures(kernel.certificate)
    if not kernel.gemm.invariant or not ours:
        return
    wanted = (kernel.gemm.row_class, kernel.device.arch)
    for other in stored:
        theirs = row_signatures(other.certificate)
        differ = bool(theirs) and len({*theirs, *ours}) > 1
        if differ and (other.gemm.row_class, other.device.arch) == wanted:
            raise RowsDiffer(
                f"{kernel.gemm} is invariant, and kernel {other.id} of {other.gemm} gives a row other bits: signature "
                f"{_listed(theirs)} of {other.config}, {_listed(ours)} of {kernel.config}; if an older tirgemm made "
                f"the stored kernel, delete it and tune {other.gemm} anew",
                theirs[0] if len(set(theirs)) == 1 else "",
            )
    if len(set(ours)) > 1:
        raise RowsDiffer(
            f"{kernel.gemm} is invariant, and the kernels of its set give a row different bits: signatures "
            f"{_listed(ours)}",
            Counter(ours).most_common(1)[0][0],
        )


def _listed(signatures: Iterable[str]) -> str:
    return " and ".join(signature[:16] for signature in dict.fromkeys(signatures))
