"""``Binary``: a compiled Program, with its sources, flags and resources."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from tirgemm.artifact import Contents
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm, Regime
from tirgemm.launch import Launch
from tirgemm.status import Role
from tirgemm.timings import Timings


@dataclass(frozen=True)
class Binary:
    """A compiled Program.

    ``launch`` is the Program's, its kernels and parameters in the order that the binary has. ``sources`` are the texts
    behind the binary: ``module.py`` (the scheduled TVMScript) and ``kernel.cu`` or ``kernel.ll``. ``flags`` are the
    compiler's and, for a family of another package, its version: part of the kernel's identity. ``resources`` are what
    the compiler reports, per device kind.
    """

    data: bytes
    format: Literal["cubin", "so"]
    launch: Launch
    sources: dict[str, str]
    flags: tuple[str, ...]
    resources: dict[str, int] = field(default_factory=dict)

    def contents(
        self,
        gemm: Gemm,
        config: Config,
        device: Device,
        certificate: dict[str, Any] | None = None,
        timings: Timings | None = None,
        selected: tuple[Regime, Role] | tuple[None, None] = (None, None),
    ) -> Contents:
        """What an artifact with this binary is packed of; ``selected``: in which regime and as which role."""
        regime, role = selected
        return Contents(
            gemm=gemm,
            config=config,
            device=device,
            launch=self.launch,
            binary=self.data,
            binary_format=self.format,
            sources=self.sources,
            flags=self.flags,
            certificate=certificate,
            timings=timings or Timings(),
            regime=regime,
            role=role,
        )

    @property
    def source_sha256(self) -> str:
        """The source hash (docs/results.md), of the generated text that was compiled: a config's is one on any
        machine."""
        return hashlib.sha256(self.sources[compiled_source(self.sources)].encode()).hexdigest()

    @property
    def binary_sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def compiled_source(sources: Iterable[str]) -> str:
    """Which of a kernel's sources is the generated text that was compiled."""
    return next(name for name in sources if name in ("kernel.cu", "kernel.ll"))
