"""The family contract: what every way to write the kernel offers, and nothing else.

Heuristic, tuner, ladder, tests and pages all go through it. A family imports TVM only inside ``instantiate``;
``supports``, ``space``, ``rules`` and ``default`` are pure and run anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tirgemm.config import Config, Space, Value
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig
from tirgemm.expr import Dim
from tirgemm.families.common.config_columns import ConfigColumns
from tirgemm.families.common.ring_buffer import RingBuffer
from tirgemm.families.common.tile_work import TileWork
from tirgemm.gemm import Gemm, Regime
from tirgemm.launch import Launch
from tirgemm.layouts import Layout, TiledCopy

if TYPE_CHECKING:
    from tvm import IRModule


@dataclass(frozen=True)
class Rule:
    """A static reason why a config cannot work or cannot win.

    ``check`` returns None where the config passes, else the sentence that a person reads: it names the knob's value
    and the limit. ``name`` is the stable word under which rejections are counted.
    """

    name: str
    check: Callable[[Gemm, Config, Device], str | None]


@dataclass(frozen=True)
class Program:
    """What a family makes of a config: one IRModule with a PrimFunc per kernel, and the Launch that runs them.

    Each PrimFunc's ``global_symbol`` is the ``symbol`` of the KernelLaunch of the same position, and its parameters are
    that launch's ``params`` in order; on a CPU an int32 block index follows as the last parameter. The IRModule is
    scheduled, not lowered; ``pipeline`` names the TVM pipeline that lowers it (``s_tir`` for TensorIR schedules,
    ``tirx`` for TIRx kernels); ``pass_config`` goes into its PassContext.
    """

    mod: IRModule
    launch: Launch
    pipeline: str = "s_tir"
    pass_config: tuple[tuple[str, object], ...] = ()


@runtime_checkable
class Family(Protocol):
    """One way to write the kernel."""

    name: str

    def supports(self, gemm: Gemm, device: Device) -> str | None:
        """None where this family writes ``gemm`` for ``device``, else the sentence that says why not."""
        ...

    def space(self, gemm: Gemm, device: Device) -> Space:
        """Every knob with its choices for this problem. Called only where supported."""
        ...

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The static rules, cheapest first."""
        ...

    def default(self, gemm: Gemm, device: Device, regime: Regime) -> Config:
        """A good config without tuning: pure, a few milliseconds at most, in the space, passing every rule."""
        ...

    def predict_us(self, gemm: Gemm, config: Config, device: Device, regime: Regime) -> float:
        """A rough analytic time in microseconds, to compare the defaults of several families."""
        ...

    def __hash__(self) -> int:
        """Families are keys of what is kept about them."""
        ...

    def instantiate(self, gemm: Gemm, config: Config, device: Device) -> Program:
        """The program of one config. Raises InvalidConfig for one outside the space or rejected by a rule."""
        ...


@dataclass(frozen=True, slots=True)
class OutputTile:
    """What a thread block computes at a time: ``m`` x ``n`` of D, summed ``k`` at a time.

    ``tiles``: of a persistent kernel, whose blocks take tile after tile, how many there are at this m, else None; of a
    problem that is split along k these are ``parts`` of each tile of D, which another kernel adds up.
    """

    m: int
    n: int
    k: int
    tiles: int | None = None
    parts: int = 1


@dataclass(frozen=True, slots=True)
class SharedTile:
    """A's tile in shared memory: ``layout`` as the kernel has it, ``copy`` which thread copies what of the operand's
    own tile (None where TMA does), and how many bytes after one another such tiles begin (``period``)."""

    layout: Layout
    copy: TiledCopy | None
    period: int


@dataclass(frozen=True, slots=True)
class LoadWaits:
    """What a block waits for, by the constants of its family's estimate: ``launch_us``, of all kernels of a call; and
    ``load_us`` from a load of A and B to its bytes, of which ``ahead`` steps are under way at once, in ``steps`` of
    k."""

    launch_us: float
    load_us: float
    ahead: int
    steps: int


# What a family may say beside the contract. Who asks goes by the names of its knobs, or does without, where it says
# nothing.


@runtime_checkable
class WithOutputTile(Protocol):
    """A family whose knobs ``tile_m``, ``tile_n``, ``tile_k`` (or ``block_m``, ...) are not the whole truth about
    tiles."""

    def output_tile(self, gemm: Gemm, config: Config, device: Device, m: int) -> OutputTile:
        """The tile of a block, for waves and edges at one m."""
        ...


@runtime_checkable
class WithSharedTile(Protocol):
    """A family whose kernels have tiles of A in shared memory, of which pictures can be drawn."""

    def shared_tile(self, gemm: Gemm, config: Config, device: Device) -> SharedTile | None:
        """A's tile; None for a config without one. Raises InvalidConfig for a config without a meaning."""
        ...


@runtime_checkable
class WithLoadWaits(Protocol):
    """A family whose estimate knows what a launch and a load take, for problems too small to fill a GPU."""

    def load_waits(self, gemm: Gemm, config: Config, device: Device, regime: Regime) -> LoadWaits:
        """What a block of ``config`` waits for in ``regime``."""
        ...


@runtime_checkable
class WithDerivedKnobs(Protocol):
    """A family whose config says by other knobs what most say by ``thread_m``, ``stages`` or ``split``."""

    def derived_knobs(self, config: Config) -> Mapping[str, Value]:
        """Knobs of the usual names, for whoever goes by those, in addition to the config's."""
        ...


@runtime_checkable
class WithTileWork(Protocol):
    """A family that says what its blocks do and how long that takes, of many configs at once."""

    def tile_work(self, gemm: Gemm, configs: ConfigColumns, device: Device) -> TileWork:
        """What the blocks of ``configs`` do."""
        ...

    def estimates_us(self, gemm: Gemm, configs: ConfigColumns, device: Device, regime: Regime) -> Any:
        """``predict_us`` of each of ``configs``, as an array."""
        ...


@runtime_checkable
class WithShortlist(Protocol):
    """A family that ranks a table of configs to find its default."""

    def shortlist(
        self, gemm: Gemm, device: Device, regime: Regime, count: int, *, trained: bool = True
    ) -> list[Config]:
        """At most ``count`` configs that pass every rule and differ in more than their raster, most of them in how the
        work is cut, the default first; without ``trained`` by the analytic estimate alone."""
        ...


@dataclass(frozen=True)
class TimedProgram:
    """A program whose kernel ``symbol`` records what its warpgroups do, and when, in the tracks of ``ring``.

    It is that of ``instantiate`` with time stamps in it: the same results, about the same speed. The tensor of ``ring``
    is the last of its launch's; each of its words must be all ones before the call. ``blocks`` of it are launched.
    """

    program: Program
    symbol: str
    ring: RingBuffer
    blocks: Dim


@runtime_checkable
class WithTimeline(Protocol):
    """A family that can build its kernels with time stamps."""

    def timed_program(self, gemm: Gemm, config: Config, device: Device, slots: int) -> TimedProgram:
        """``instantiate`` with time stamps, of which each warpgroup keeps the last ``slots`` spans, a power of two.

        Raises InvalidConfig as that does, InvalidRequest for slots that cannot be.
        """
        ...


def rejected(family: Family, gemm: Gemm, config: Config, device: Device) -> tuple[str, str] | None:
    """The first rule that rejects ``config``, as (name, sentence), or None."""
    for rule in family.rules:
        reason = rule.check(gemm, config, device)
        if reason is not None:
            return rule.name, reason
    return None


def accepted(rules: Sequence[Rule], gemm: Gemm, config: Config, device: Device) -> bool:
    """Whether none of these rules rejects ``config``."""
    return all(rule.check(gemm, config, device) is None for rule in rules)


def require_valid(family: Family, gemm: Gemm, config: Config, device: Device) -> None:
    """Raise InvalidConfig unless ``config`` is in the space and passes every rule: the first line of
    ``instantiate``."""
    family.space(gemm, device).check(config)
    require_rules(family, gemm, config, device)


def require_rules(family: Family, gemm: Gemm, config: Config, device: Device) -> None:
    """Raise InvalidConfig with the first rule that rejects ``config``."""
    violation = rejected(family, gemm, config, device)
    if violation is not None:
        raise InvalidConfig(f"{config} for {gemm} on {device.name}: rule {violation[0]}: {violation[1]}")
