"""The ladder: from the naive kernel to the family's default, each rung one change away from its parent.

A tree. A rung is (name, parent, config, the one thing changed); every rung is a config of the family's space and goes
through ``Simt.instantiate``. The changes are those of the articles that ``docs/ladder.md`` names.
"""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.config import Config, Value
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families.simt import heuristic
from tirgemm.families.simt.rules import RULES
from tirgemm.families.simt.space import ladder_space
from tirgemm.gemm import Gemm, Regime

# The ladder is one of this family by its definition: who runs it asks for the family by this name.
FAMILY = "simt"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder: ``knobs`` are what it sets beside its parent's, ``changed`` says it in words."""

    name: str
    parent: str | None
    changed: str
    knobs: tuple[tuple[str, Value], ...] = ()


def _rung(name: str, parent: str | None, changed: str, **knobs: Value) -> Rung:
    return Rung(name, parent, changed, tuple(knobs.items()))


RUNGS: tuple[Rung, ...] = (
    _rung(
        "naive",
        None,
        "a thread computes one output from global memory; threads that are neighbours in x take rows of m",
        block_m=32,
        block_n=32,
        block_k=32,
        thread_m=1,
        thread_n=1,
        lanes_n=1,
        piece=1,
        vector=1,
        pad=0,
        unroll=8,
        pipeline="none",
        raster=1,
        resident=0,
        reads="global",
        lane_order="row",
        grid="plane",
        barriers=2,
    ),
    _rung(
        "coalesced",
        "naive",
        "threads that are neighbours in x take columns of n: a warp reads whole lines of B",
        lanes_n=32,
    ),
    _rung(
        "shared_block",
        "coalesced",
        "the block copies tiles of A and B to shared memory and reads them there",
        reads="outer",
    ),
    _rung(
        "inner_product",
        "shared_block",
        "a thread computes 8 x 8 outputs one after the other, k innermost",
        block_m=128,
        block_n=128,
        block_k=8,
        thread_m=8,
        thread_n=8,
        lanes_n=16,
        piece=8,
        resident=2,
        reads="inner",
    ),
    _rung(
        "tile_1d",
        "shared_block",
        "a thread computes 8 outputs of a column, k outermost",
        block_m=64,
        block_n=64,
        block_k=8,
        thread_m=8,
        piece=8,
    ),
    _rung(
        "tile_2d",
        "tile_1d",
        "a thread computes 8 x 8 outputs as outer products; two blocks fit an SM",
        block_m=128,
        block_n=128,
        thread_n=8,
        lanes_n=16,
        resident=2,
    ),
    _rung(
        "register_cache", "tile_2d", "the 8 + 8 elements of a step of k are read into registers first", reads="scalars"
    ),
    _rung(
        "float4",
        "register_cache",
        "accesses of four elements; A is transposed on its way to shared memory",
        reads="fragments",
        vector=4,
    ),
    _rung(
        "pad_store", "float4", "rows of the transposed tile are 4 elements longer, for the banks of its stores", pad=4
    ),
    _rung(
        "zorder",
        "float4",
        "a warp is 8 x 4 threads in Z order, for the banks of its loads",
        lanes_n=4,
        lane_order="z",
    ),
    _rung("vthread", "float4", "the thread tile is four tiles of 4 x 4, strided over the block", piece=4),
    _rung("warp_tile", "vthread", "a warp is 4 x 8 threads, no longer 2 x 16", lanes_n=8),
    _rung(
        "double_buffer",
        "warp_tile",
        "two tiles of each operand, the next loaded meanwhile: one barrier a step",
        pipeline="double",
        barriers=1,
    ),
    _rung(
        "grid_shape",
        "double_buffer",
        "8 columns of blocks are neighbours in time: a grid of 1024x16, not 128x128",
        raster=8,
    ),
    _rung("pad_zorder", "grid_shape", "pad_store and zorder join the main line", pad=4, lane_order="z"),
    _rung(
        "combined",
        "pad_zorder",
        "thread tiles of 8 x 16 and 16 steps of k between barriers, as a search found them fastest",
        block_k=16,
        thread_n=16,
        piece=8,
        unroll=16,
        grid="line",
    ),
    _rung(DEFAULT, "combined", "the config that the family chooses without tuning"),
)

# One more where a search has been over the problem: its config is the search's, not the ladder's.
TUNED = Rung("tuned", DEFAULT, "the fastest config that a search of the space found")

_BY_NAME = {rung.name: rung for rung in RUNGS}


def rung(name: str) -> Rung:
    """The rung of that name. Raises InvalidRequest."""
    if name not in _BY_NAME:
        raise InvalidRequest(f"rung {name!r} is unknown; rungs are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def line(name: str) -> tuple[Rung, ...]:
    """The rungs from the root to ``name``."""
    last = rung(name)
    return (*(line(last.parent) if last.parent else ()), last)


def config(name: str, gemm: Gemm, device: Device, regime: Regime = "sustained") -> Config:
    """The config of a rung for a problem. Raises InvalidRequest with the reason where the problem does not take it.

    A number that is too wide for the problem's rows or its grid becomes the nearest that fits: ``vector``, ``raster``,
    ``pad`` where nothing is transposed. A range's blocks stay a plane.
    """
    if name == DEFAULT:
        return heuristic.default(gemm, device, regime)
    knobs: dict[str, Value] = {}
    for step in line(name):
        knobs.update(step.knobs)
    choices = {knob.name: knob.choices for knob in ladder_space(gemm).knobs}
    for knob in ("vector", "raster", "pad"):
        knobs[knob] = _fitting(gemm, knob, knobs, choices[knob])
    if knobs["grid"] not in choices["grid"]:
        (knobs["grid"],) = choices["grid"]
    outside = [knob for knob, value in knobs.items() if value not in choices[knob]]
    if outside:
        knob = outside[0]
        raise InvalidRequest(
            f"rung {name} needs {knob}={knobs[knob]}; for {gemm} the choices are {', '.join(map(str, choices[knob]))}"
        )
    made = Config(FAMILY, tuple((knob, knobs[knob]) for knob in choices))
    for rule in RULES:
        reason = rule.check(gemm, made, device)
        if reason is not None:
            raise InvalidRequest(f"rung {name} does not suit {gemm} on {device.name}: {reason}")
    return made


def changes(name: str, gemm: Gemm, device: Device, regime: Regime = "sustained") -> dict[str, tuple[Value, Value]]:
    """Knob -> (parent's value, the rung's), for those that differ. Raises as ``config``."""
    parent = rung(name).parent
    if parent is None:
        return {}
    before, after = (config(named, gemm, device, regime) for named in (parent, name))
    return {knob: (before[knob], value) for knob, value in after.knobs if before[knob] != value}


def _fitting(gemm: Gemm, knob: str, knobs: dict[str, Value], choices: tuple[Value, ...]) -> Value:
    """The largest choice that is at most what the rung asks for; a raster must divide the columns of blocks too."""
    columns = -(-gemm.n // int(knobs["block_n"]))
    fits = [
        choice
        for choice in choices
        if isinstance(choice, int)
        and choice <= int(knobs[knob])
        and (knob != "raster" or columns % max(1, choice) == 0)
    ]
    return max(fits)
