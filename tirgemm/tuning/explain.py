"""Explanation of a config: lowers and compiles its kernels, and hands both to the analysis."""

from __future__ import annotations

from functools import lru_cache

from tirgemm._extras import require
from tirgemm.analysis.explanation import ExplainedConfig, Explanation, MachineCode, explain_launch
from tirgemm.analysis.ir.sites import Unknown
from tirgemm.analysis.memory_traffic import KernelAnalysis, analyse
from tirgemm.analysis.roofline import Measurements
from tirgemm.artifact import Package
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, InvalidConfig, MissingExtra, TirgemmError, Unsupported
from tirgemm.families import Family, family_named, refusal, supporting
from tirgemm.families.base import Program
from tirgemm.families.choice import ranked_defaults
from tirgemm.families.common.tracing import quick_tracing
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.build.cuda import checked_launch, compile_lowered, lower_all, lower_rolled
from tirgemm.tuning.search.partial_config import completed, parse_knobs

_HERE = "compiled here"
_SERVED = "the machine code that is served"
_CHANGED = "compiled here: this version of tirgemm writes the config otherwise than the one that built the artifact"


def explain(
    gemm: Gemm,
    config: Config,
    device: Device,
    *,
    compiled: bool = True,
    m: int = 0,
    regime: Regime = "sustained",
    package: Package | None = None,
    measured: Measurements | None = None,
) -> Explanation:
    """Why ``config`` of ``gemm`` is as fast as it is on ``device``, which need not be here.

    ``compiled`` false reports as written, without compiling; so does a machine without a compiler or a disassembler,
    and says why. ``m``: what a range is taken to be, its largest by default. ``regime``: whose default the config may
    be.
    ``package``: the kernel's artifact, whose machine code is read where this version of the program writes the same
    source. ``measured``: its time, and rates that were seen on the device. Raises Unsupported for a CPU and
    for a gemm that the family does not write, InvalidConfig, InvalidRequest, BuildFailed, AnalysisFailed.
    """
    require("explaining a kernel", "tune")
    family = writing(gemm, config.family, device)
    try:
        program = _program(family, gemm, config, device)
        host, module, source = lower_all(program, device.arch)
    except TirgemmError:
        raise
    except Exception as error:  # TVM raises whatever its C++ raised
        words = " / ".join(str(error).split("\n"))
        raise BuildFailed(f"{config} for {gemm} was not lowered for {device.arch}: {words}"[:2000]) from error
    launch = checked_launch(program, host)
    code = MachineCode()
    if compiled:
        try:
            code = _machine_code(package, source, device)
        except MissingExtra as error:
            code = MachineCode(missing=(Unknown("machine code", str(error)),))
    default = config == family.default(gemm, device, regime)
    subject = ExplainedConfig(gemm, config, device, m or gemm.m_max, default, regime)
    return explain_launch(module, launch, subject, code, measured or Measurements())


def _machine_code(package: Package | None, source: str, device: Device) -> MachineCode:
    if package is not None and package.sources.get("kernel.cu") == source:
        return MachineCode(package.binary, _SERVED)
    built, cubin = compile_lowered(source, device.arch)
    if package is None:
        return MachineCode(cubin.data, _HERE)
    served = package.sources.get("kernel.cu") == built
    return MachineCode(package.binary, _SERVED) if served else MachineCode(cubin.data, _CHANGED)


def writing(gemm: Gemm, name: str, device: Device) -> Family:
    """The family ``name``, which writes ``gemm`` for ``device``, a GPU. Raises Unsupported, InvalidRequest."""
    family = family_named(name)
    _require_gpu(device)
    reason = refusal(family, gemm, device)
    if reason is not None:
        raise Unsupported(f"family {name} does not write {gemm} for {device.name}: {reason}")
    return family


def _require_gpu(device: Device) -> None:
    if device.kind != "cuda":
        raise Unsupported(
            f"device {device.name} is no GPU ({device.model}): what is explained are GPU kernels; name a device such "
            "as sm_90a"
        )


def chosen(
    gemm: Gemm,
    device: Device,
    family: str | None = None,
    knobs: str = "",
    regime: Regime = "sustained",
    base: Config | None = None,
) -> Config:
    """The config to explain: the default of ``family``, or of the family that is predicted to be fastest, or ``base``;
    with ``knobs`` (``name=value,name=value``) in place of its own. Raises Unsupported, InvalidConfig,
    InvalidRequest."""
    if base is not None:
        return with_knobs(writing(gemm, base.family, device), gemm, device, base, knobs)
    if family is None:
        _require_gpu(device)
        if knobs:
            names = ", ".join(each.name for each in supporting(gemm, device))
            raise InvalidConfig(f"the knobs {knobs!r:.200} are of no family: name it with --family, one of {names}")
        return ranked_defaults(supporting(gemm, device), gemm, device, regime)[0][1]
    writer = writing(gemm, family, device)
    return with_knobs(writer, gemm, device, writer.default(gemm, device, regime), knobs)


def with_knobs(family: Family, gemm: Gemm, device: Device, config: Config, knobs: str) -> Config:
    """``config`` with the ``name=value`` pairs of ``knobs``, separated by commas, and with what the rules then need of
    the others. Raises InvalidConfig."""
    return completed(family, gemm, device, config, parse_knobs(family, gemm, device, knobs))


@lru_cache(maxsize=128)  # kernels of a problem have neighbours in common, and are explained again
def rolled_memory_of(gemm: Gemm, config: Config, device: Device, *, m: int = 0) -> tuple[KernelAnalysis, ...]:
    """The memory accesses alone of every kernel of ``config``, in order of launch, without machine code, with loops
    that the kernel unrolls left as loops: the sums are the same, and take a tenth of the time where much is unrolled.
    Arguments and errors as ``explain``.

    Where something is unknown so, or sampled, as a register that a loop chooses, the loops are unrolled after all.
    """
    program = _program(writing(gemm, config.family, device), gemm, config, device)
    host, module = lower_rolled(program, device.arch)
    kernels = analyse(module, checked_launch(program, host), gemm, device, None, m)
    if any(kernel.unknown or any(access.sampled for access in kernel.accesses) for kernel in kernels):
        host, module, _ = lower_all(program, device.arch)
        kernels = analyse(module, checked_launch(program, host), gemm, device, None, m)
    return kernels


def _program(family: Family, gemm: Gemm, config: Config, device: Device) -> Program:
    with quick_tracing():
        return family.instantiate(gemm, config, device)
