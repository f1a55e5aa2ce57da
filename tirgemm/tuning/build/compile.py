"""Compile a Program to a ``Binary``, for the CPU or for a GPU."""

from __future__ import annotations

from dataclasses import replace

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import BuildersUnusable, BuildFailed, TirgemmError
from tirgemm.families import family_named, origin
from tirgemm.families.base import Program
from tirgemm.families.common.tracing import quick_tracing
from tirgemm.gemm import Gemm
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.process import spans


def compile_program(program: Program, device: Device) -> Binary:
    """Lower and compile ``program`` for exactly ``device``. Raises BuildFailed with the compiler's words."""
    try:
        if device.kind == "cuda":
            from tirgemm.tuning.build.cuda import compile_program as compile_for
        else:
            from tirgemm.tuning.build.cpu import compile_program as compile_for
        return compile_for(program, device)
    except TirgemmError:
        raise
    except (OSError, MemoryError) as error:
        raise BuildersUnusable(f"this machine cannot build for {device.arch}: {error}") from error
    except Exception as error:  # TVM raises whatever its C++ raised: ValueError, InternalError, RuntimeError ...
        names = ", ".join(kernel.symbol for kernel in program.launch.kernels)
        raise BuildFailed(f"{names} did not compile for {device.arch}: {_words(error)}") from error


def build(gemm: Gemm, config: Config, device: Device) -> Binary:
    """Instantiate ``config`` of its family and compile it. Raises InvalidConfig, or BuildFailed for everything else."""
    family = family_named(config.family)
    try:
        with quick_tracing(), spans.span("instantiate"):
            program = family.instantiate(gemm, config, device)
    except TirgemmError:
        raise
    except Exception as error:  # a schedule primitive that does not apply raises TVM's own errors
        raise BuildFailed(f"{config} for {gemm} could not be scheduled: {_words(error)}") from error
    binary = compile_program(program, device)
    made_by = origin(config.family)
    # Part of the kernel's identity: another version of a package is another kernel, even where its code is the same.
    return binary if made_by is None else replace(binary, flags=(*binary.flags, f"family={config.family} ({made_by})"))


def _words(error: Exception) -> str:
    """The last lines of an error: TVM puts the reason there, after its C++ frames."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " / ".join(lines[-3:])[:2000] or type(error).__name__
