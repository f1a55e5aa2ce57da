"""From a Program to the bytes that a package holds: one entry, one file per device kind."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Literal

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, TirgemmError
from tirgemm.families import family_named
from tirgemm.families.base import Program
from tirgemm.families.tracing import quick_tracing
from tirgemm.gemm import Gemm
from tirgemm.launch import Launch


@dataclass(frozen=True)
class Binary:
    """A compiled Program.

    ``launch`` is the Program's, its kernels and parameters in the order that the binary has. ``sources`` are the texts
    behind the binary: ``module.py`` (the scheduled TVMScript) and ``kernel.cu`` or ``kernel.ll``. ``flags`` are the
    compiler's, part of the kernel's identity. ``resources`` are what the compiler reports, per device kind.
    """

    data: bytes
    format: Literal["cubin", "so"]
    launch: Launch
    sources: dict[str, str]
    flags: tuple[str, ...]
    resources: dict[str, int] = field(default_factory=dict)

    @property
    def source_sha256(self) -> str:
        """Over every source text and the flags: the same config gives the same one on any machine."""
        text = json.dumps([sorted(self.sources.items()), list(self.flags)], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def binary_sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def compile_program(program: Program, device: Device) -> Binary:
    """Lower and compile ``program`` for exactly ``device``. Raises BuildFailed with the compiler's words."""
    try:
        if device.kind == "cuda":
            from tirgemm.tuning.compile.cuda import compile_program as compile_for
        else:
            from tirgemm.tuning.compile.cpu import compile_program as compile_for
        return compile_for(program, device)
    except TirgemmError:
        raise
    except Exception as error:  # TVM raises whatever its C++ raised: ValueError, InternalError, RuntimeError ...
        raise BuildFailed(f"{_names(program)} did not compile for {device.arch}: {_words(error)}") from error


def build(gemm: Gemm, config: Config, device: Device) -> Binary:
    """Instantiate ``config`` of its family and compile it. Raises InvalidConfig, or BuildFailed for everything else."""
    family = family_named(config.family)
    try:
        with quick_tracing():
            program = family.instantiate(gemm, config, device)
    except TirgemmError:
        raise
    except Exception as error:  # a schedule primitive that does not apply raises TVM's own errors
        raise BuildFailed(f"{config} for {gemm} could not be scheduled: {_words(error)}") from error
    return compile_program(program, device)


def _names(program: Program) -> str:
    return ", ".join(kernel.symbol for kernel in program.launch.kernels)


def _words(error: Exception) -> str:
    """The last lines of an error: TVM puts the reason there, after its C++ frames."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " / ".join(lines[-3:])[:2000] or type(error).__name__
