"""One kind of shared-memory access: the instruction, the bytes of a lane, the matrices of ldmatrix and stmatrix."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from tirgemm.errors import InvalidRequest

Operation = Literal["load", "store", "ldmatrix", "stmatrix", "cp.async"]
WIDTHS = (1, 2, 4, 8, 16)
_COPY_WIDTHS = (4, 8, 16)
_MATRICES = (1, 2, 4)
_ROW_BYTES = 16  # of ldmatrix's and stmatrix's 8x8 matrices of 16-bit elements
_MATRIX_ROWS = 8
WARP = 32
_TEXT = re.compile(r"(load|store|cp\.async)\.(\d+)(\.ca)?|(ldmatrix|stmatrix)\.x(\d)(\.trans)?")


@dataclass(frozen=True, slots=True)
class SharedAccess:
    """``operation`` of ``width`` bytes a lane. Text form: ``load.128`` (bits), ``ldmatrix.x4.trans``, ``cp.async.16``,
    ``cp.async.16.ca``.

    ``width`` is what one lane's address stands for: 1, 2, 4, 8 or 16 bytes for loads and stores, 4, 8 or 16 for
    cp.async, a row of 16 for ldmatrix and stmatrix. ``matrices`` (1, 2 or 4) of those need the addresses of lanes 0 to
    8 * matrices - 1 only. ``through_l1``: of a cp.async of 16 bytes, which alone may go past L1 (.cg) or not (.ca).
    Raises InvalidRequest.
    """

    operation: Operation
    width: int = _ROW_BYTES
    matrices: int = 0
    transposed: bool = False
    through_l1: bool = False

    def __post_init__(self) -> None:
        if self.operation not in ("load", "store", "ldmatrix", "stmatrix", "cp.async"):
            raise InvalidRequest(
                f"shared access {self.operation!r} is none of load, store, ldmatrix, stmatrix and cp.async"
            )
        if self.of_matrices:
            if self.matrices not in _MATRICES or self.width != _ROW_BYTES:
                raise InvalidRequest(
                    f"{self.operation} of {self.matrices} matrices with rows of {self.width} bytes; it has 1, 2 or 4 "
                    f"with rows of {_ROW_BYTES}"
                )
            return
        if self.matrices or self.transposed:
            raise InvalidRequest(f"{self.operation} has no matrices and no .trans")
        widths = _COPY_WIDTHS if self.operation == "cp.async" else WIDTHS
        if self.width not in widths:
            raise InvalidRequest(f"{self.operation} of {self.width} bytes a lane; it has {widths}")
        if self.through_l1 and (self.operation, self.width) != ("cp.async", _ROW_BYTES):
            raise InvalidRequest(f".ca of {self.operation} of {self.width} bytes a lane; cp.async of 16 has it")

    @classmethod
    def parse(cls, text: str) -> SharedAccess:
        """The access whose text form is ``text``. Raises InvalidRequest."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InvalidRequest(
                f"access {text!r} is none of load.BITS, store.BITS, cp.async.BYTES[.ca], ldmatrix.xN[.trans] and "
                f"stmatrix.xN[.trans]"
            )
        if match[4]:
            return cls(cast(Operation, match[4]), matrices=int(match[5]), transposed=bool(match[6]))
        size = int(match[2])
        if match[1] != "cp.async" and size % 8:
            raise InvalidRequest(f"access {text!r} is of {size} bits, which are no whole bytes")
        width = size if match[1] == "cp.async" else size // 8
        return cls(cast(Operation, match[1]), width, through_l1=bool(match[3]))

    def __str__(self) -> str:
        if self.of_matrices:
            return f"{self.operation}.x{self.matrices}{'.trans' if self.transposed else ''}"
        if self.operation == "cp.async":
            return f"cp.async.{self.width}{'.ca' if self.through_l1 else ''}"
        return f"{self.operation}.{8 * self.width}"

    @property
    def of_matrices(self) -> bool:
        return self.operation in ("ldmatrix", "stmatrix")

    @property
    def past_l1(self) -> bool:
        """Whether it is a cp.async that does not go through L1: what it reads is written as it comes from L2."""
        return self.operation == "cp.async" and self.width == _ROW_BYTES and not self.through_l1

    @property
    def reads(self) -> bool:
        """Whether shared memory is read: what it reads twice it may broadcast."""
        return self.operation in ("load", "ldmatrix")

    @property
    def lanes(self) -> int:
        """How many lanes' addresses count: the first so many."""
        return _MATRIX_ROWS * self.matrices if self.of_matrices else WARP
