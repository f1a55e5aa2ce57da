"""Builds of mutated configs, as ``BuildPool`` calls them in its processes.

A config with one more knob, ``alteration``, names an altered source: ``DELAY``, ``LIMIT+DROP:412`` (``alterations``).
With ``DEPENDENT`` among its words, kernels wait at their entry and are launched for programmatic dependent launch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.launch import Launch
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.build.dependent_launch import waiting
from verification.alterations import altered

if TYPE_CHECKING:
    from tirgemm.tuning.workbench import Workbench

BUILDER = "verification.altered:build"
KNOB, DEPENDENT = "alteration", "dependent"


def with_alteration(config: Config, alteration: str) -> Config:
    """``config`` with an alteration as its last knob; empty for the source as it is."""
    return Config(config.family, (*config.knobs, (KNOB, alteration)))


def altered_bench(device: Device, processes: int | None = None) -> Workbench:
    """Builds configs with an alteration in ``processes`` processes, and signs them with a key of its own."""
    from tirgemm.tuning.records.memory_store import MemoryStore
    from tirgemm.tuning.workbench import Workbench

    return Workbench(device, MemoryStore(), processes=processes, builder=BUILDER)


def build(gemm: Gemm, config: Config, device: Device) -> Binary:
    """The altered source, compiled, with the launch of the unaltered one. Raises BuildFailed, InvalidRequest.

    ``resources`` also has ``serialised``: 1 where ptxas warns that wgmmas run one by one.
    """
    from tirgemm.tuning.build.cuda import compile_lowered

    base = Config(config.family, tuple(knob for knob in config.knobs if knob[0] != KNOB))
    launch, source = lowered(gemm, base, device)
    words = [word for word in config[KNOB].split("+") if word]
    others = "+".join(word for word in words if word != DEPENDENT)
    text = altered(source, others) if others else source
    if DEPENDENT in words:
        text, launch = waiting(text, launch)
    text, cubin = compile_lowered(text, device.arch)
    kernels = [cubin.resources[kernel.symbol] for kernel in launch.kernels]
    resources = {
        "registers": max(kernel.registers for kernel in kernels),
        "spill_bytes": max(kernel.spill_bytes for kernel in kernels),
        "serialised": int(cubin.serialised),
    }
    return Binary(cubin.data, "cubin", launch, {"kernel.cu": text}, cubin.flags, resources)


@lru_cache(maxsize=8)
def lowered(gemm: Gemm, config: Config, device: Device) -> tuple[Launch, str]:
    """The launch, as the cubin's parameters have it, and the CUDA source of a config. Needs TVM."""
    from tirgemm.tuning.build.cuda import checked_launch, lower

    program = family_named(config.family).instantiate(gemm, config, device)
    host, source = lower(program, device.arch)
    return checked_launch(program, host), source
