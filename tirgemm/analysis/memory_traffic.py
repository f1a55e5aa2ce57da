"""Memory traffic of a kernel: every access with its requests, wavefronts, conflicts and sectors, and their sums.

Addresses come from the IR. Where the machine code is given, what became of each access comes from it, and accesses that
the compiler merged, removed or hoisted are counted as they run; without it the report is as written, not as compiled.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import prod
from typing import TYPE_CHECKING, Any

from tirgemm import expr
from tirgemm.analysis.banks import core_matrix, wavefronts
from tirgemm.analysis.banks.wavefronts import BankModel, bank_model
from tirgemm.analysis.ir.access_tree import access_tree
from tirgemm.analysis.ir.expressions import LANE, WARP
from tirgemm.analysis.ir.intrinsics import map_name
from tirgemm.analysis.ir.patterns import LANES, Requests
from tirgemm.analysis.ir.sites import LSU, Loop, Site, Unknown
from tirgemm.analysis.ir.unrolled_copies import Access, accesses_of
from tirgemm.analysis.match.accesses import Matching, OpcodeCount, match
from tirgemm.analysis.sass.program import Function, disassemble
from tirgemm.analysis.simulate.counting import COUNTS, RequestCounter, RequestKind, Tally
from tirgemm.analysis.simulate.evaluate import Extents, run
from tirgemm.analysis.simulate.shared_aliasing import operands
from tirgemm.device import Device
from tirgemm.errors import AnalysisFailed, InvalidRequest
from tirgemm.gemm import DTYPE_BYTES, Gemm
from tirgemm.launch import KernelLaunch, Launch, Pointer, Size, TensorMap

if TYPE_CHECKING:
    from tvm import IRModule
    from tvm.tirx import PrimFunc
# Space and operations of each sum; what TMA moves does not pass here.
_TOTALS = {
    "shared_loads": ("shared", "load", "ldmatrix"),
    "shared_stores": ("shared", "store", "stmatrix"),
    "shared_copies": ("shared", "copy"),
    "global_loads": ("global", "load", "copy"),
    "global_stores": ("global", "store"),
}


@dataclass(frozen=True, slots=True)
class Example:
    """One request of an access, of those that cost most: the byte address of every lane, None where it takes no part.

    ``phases``: of a shared access the lanes that are served together, with the banks that each touches and the passes.
    """

    addresses: tuple[int | None, ...]
    phases: tuple[tuple[tuple[int, ...], tuple[tuple[int, ...], ...], int], ...] = ()


@dataclass(frozen=True, slots=True)
class AccessReport:
    """One access over the whole grid.

    ``buffer``, ``operand`` (whose data), ``space``, ``op``, ``width`` (bytes a lane as the machine moves them),
    ``loops`` around it (outermost first), their ``trips`` (None where blocks differ or registers decide) and ``copies``
    in the IR are the access's. ``requests`` are warp-wide ones with at least
    one active lane; ``lanes`` counts active lanes. ``wavefronts`` and ``fewest_wavefronts`` are of shared memory,
    ``sectors`` to ``aligned_bytes`` of global memory; ``looked_up_sectors`` are those that L1 counts, of a cp.async on
    its shared side; ``used_bytes`` of TMA are those of its boxes, in shared memory too; ``aligned_bytes`` is the
    largest power of two, at most 128, at which every request begins, 0 in shared memory. ``sampled``: scaled up from a
    part of the iterations.
    ``fate``: what the compiler made of it, and ``code`` the instructions; both empty without machine code.
    ``bound``: whether fewer may run than are counted. ``unknown``: why it is not counted, if it is not.
    """

    buffer: str
    operand: str
    space: str
    op: str
    width: int
    matrices: int
    transposed: bool
    detail: str
    loops: tuple[str, ...]
    trips: tuple[int | None, ...]
    copies: int
    requests: int
    lanes: int
    wavefronts: int
    fewest_wavefronts: int
    sectors: int
    fewest_sectors: int
    lines: int
    looked_up_sectors: int
    used_bytes: int
    aligned_bytes: int
    sampled: bool
    example: Example | None
    bound: bool
    fate: str
    code: tuple[OpcodeCount, ...]
    unknown: str

    @property
    def conflicts(self) -> int:
        return self.wavefronts - self.fewest_wavefronts

    @property
    def sectors_per_request(self) -> float:
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def wavefronts_per_request(self) -> float:
        return self.wavefronts / self.requests if self.requests else 0.0

    @property
    def efficiency(self) -> float:
        """Of global memory: bytes asked for over bytes moved in sectors. Of shared memory: fewest over real
        wavefronts."""
        if self.space == "global":
            return self.used_bytes / (32 * self.sectors) if self.sectors else 1.0
        return self.fewest_wavefronts / self.wavefronts if self.wavefronts else 1.0

    def to_json(self) -> dict[str, Any]:
        """Every field and property, as JSON has them."""
        derived = ("conflicts", "sectors_per_request", "wavefronts_per_request", "efficiency")
        return asdict(self) | {name: getattr(self, name) for name in derived}


@dataclass(frozen=True, slots=True)
class Traffic:
    """Sums over some accesses: requests, wavefronts and conflicts in shared memory, sectors in global memory and L1."""

    requests: int = 0
    wavefronts: int = 0
    conflicts: int = 0
    sectors: int = 0
    looked_up_sectors: int = 0


@dataclass(frozen=True, slots=True)
class KernelAnalysis:
    """One kernel. ``compiled``: whether its machine code was read. ``unknown``: all that is not in the sums, by
    name."""

    symbol: str
    compiled: bool
    accesses: tuple[AccessReport, ...]
    unknown: tuple[Unknown, ...]

    def traffic(self, space: str, *ops: str) -> Traffic:
        """The sums over the accesses of ``space`` by ``ops``."""
        mine = [a for a in self.accesses if a.space == space and a.op in ops]
        return Traffic(*(sum(getattr(a, field.name) for a in mine) for field in fields(Traffic)))

    @property
    def totals(self) -> dict[str, Traffic]:
        """By what is done where; copies are of cp.async, whose reading side is with the loads of global memory."""
        return {name: self.traffic(*which) for name, which in _TOTALS.items()}

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {
            "symbol": self.symbol,
            "compiled": self.compiled,
            "totals": {name: asdict(traffic) for name, traffic in self.totals.items()},
            "accesses": [a.to_json() for a in self.accesses],
            "unknown": [asdict(u) for u in self.unknown],
        }


def analyse(
    mod: IRModule, launch: Launch, gemm: Gemm, device: Device, cubin: bytes | None = None, m: int = 0
) -> tuple[KernelAnalysis, ...]:
    """The analysis of every kernel of ``launch``, in order.

    ``mod``: the device functions as they are right before code generation; ``launch``: the launch with the parameter
    order that they have; ``cubin``: its machine code, None to report as written. ``m`` is what the range of ``gemm`` is
    taken to be, its largest by default. Raises InvalidRequest for an m outside of the range or an architecture without
    a bank model, AnalysisFailed for a kernel that ``mod`` or ``cubin`` lacks, MissingExtra without a disassembler.
    """
    size = _size(gemm, m)
    model = bank_model(device.arch)
    lowered = {str(f.attrs["global_symbol"]): f for f in mod.functions.values()}
    code = None if cubin is None else {f.name: f for f in disassemble(cubin)}
    traffic = []
    for kernel in launch.kernels:
        if kernel.symbol not in lowered:
            raise AnalysisFailed(f"kernel {kernel.symbol} is not in the module, which has {', '.join(lowered)}")
        if code is not None and kernel.symbol not in code:
            raise AnalysisFailed(f"kernel {kernel.symbol} is not in the cubin, which has {', '.join(code)}")
        traffic.append(
            analyse_kernel(lowered[kernel.symbol], kernel, size, model, None if code is None else code[kernel.symbol])
        )
    return tuple(traffic)


def _size(gemm: Gemm, m: int) -> int:
    if not m:
        return gemm.m_max
    if not gemm.m_min <= m <= gemm.m_max:
        raise InvalidRequest(f"m is {m}; {gemm} has m from {gemm.m_min} to {gemm.m_max}")
    return m


def analyse_kernel(
    function: PrimFunc, kernel: KernelLaunch, m: int, model: BankModel, code: Function | None = None
) -> KernelAnalysis:
    """The analysis of one kernel at ``m``; ``code`` is its machine code."""
    x, y, z = (expr.evaluate(extent, m) for extent in kernel.grid)
    grid = x, y, z
    tree = access_tree(function, _extents(kernel, grid), *_parameters(function, kernel, m))
    accesses = accesses_of(tree.body)
    matching = match(accesses, code, kernel) if code is not None else Matching.as_written(accesses)
    counter = RequestCounter(model)
    tallies = {access: Tally() for access in accesses}
    home = {site: access for access in accesses for site in access.sites}
    failed: dict[Access, str] = {}

    def report(site: Site, requests: Requests) -> None:
        access = home[site]
        if site.op not in LSU:
            tallies[access].requests += float(requests.weights.sum())
            return
        kind = RequestKind.of(site)
        try:
            for width, share in matching.uses.get(site, {site.width: 1.0}).items():
                counter.count(replace(kind, width=width), requests, tallies[access], share)
        except InvalidRequest as error:
            failed.setdefault(access, str(error))

    def fail(site: Site, reason: str) -> None:
        failed.setdefault(home[site], reason)

    run(tree.body, Extents(grid, prod(kernel.block)), report, fail)
    boxes = _boxes(function, kernel, m)
    values = {f"blockIdx.{axis}": e for axis, e in zip("xyz", grid, strict=True)}
    tensors = operands(accesses, {**values, LANE: LANES, WARP: -(-prod(kernel.block) // LANES)})
    matching = _of_whole_requests(matching, tallies, tensors)
    reports = tuple(
        replace(
            _report(access, tallies[access], matching, failed.get(access, ""), model, boxes),
            operand=tensors.get(access, access.first.operand),
        )
        for access in accesses
    )
    named = [Unknown(f"{a.op} of {a.operand or a.buffer}", a.unknown) for a in reports if a.unknown]
    return KernelAnalysis(kernel.symbol, code is not None, reports, (*tree.unknown, *named, *matching.unmatched))


def _of_whole_requests(matching: Matching, tallies: Mapping[Access, Tally], tensors: Mapping[Access, str]) -> Matching:
    """The same with shares that leave whole requests of each access, so that each keeps its wavefronts a request. What
    rounding takes from one, the next of its kind gets: their sum is right."""
    forms = dict(matching.forms)
    over: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for access, form in matching.forms.items():
        written, site = tallies[access].requests, access.first
        if form.share != 1.0 and written:
            kind = (site.buffer, site.op, tensors.get(access, site.operand), form.words)
            over[kind] += written * form.share
            whole = round(over[kind])
            over[kind] -= whole
            forms[access] = replace(form, share=whole / written)
    return replace(matching, forms=forms)


def _extents(kernel: KernelLaunch, grid: tuple[int, int, int]) -> dict[str, int]:
    sizes = {"blockIdx": grid, "threadIdx": kernel.block, "clusterCtaIdx": kernel.cluster}
    return {f"{name}.{axis}": e for name, extents in sizes.items() for axis, e in zip("xyz", extents, strict=True)}


def _parameters(function: PrimFunc, kernel: KernelLaunch, m: int) -> tuple[dict[str, int], dict[str, str]]:
    """The values of integer parameters, and the tensors of pointers and tensor maps, by the function's names."""
    if len(function.params) != len(kernel.params):
        raise AnalysisFailed(
            f"kernel {kernel.symbol} takes {len(function.params)} parameters, its launch gives {len(kernel.params)}"
        )
    sizes: dict[str, int] = {}
    names: dict[str, str] = {}
    for variable, param in zip(function.params, kernel.params, strict=True):
        if isinstance(param, Size):
            sizes[str(variable.name)] = expr.evaluate(param.value, m)
        elif isinstance(param, (Pointer, TensorMap)):
            names[str(variable.name)] = param.name
    return sizes, names


@dataclass(frozen=True, slots=True)
class _TmaBox:
    """The box of one descriptor: its sides in words, and its bytes that may lie in the tensor, in the mean."""

    words: str
    nbytes: float


def _boxes(function: PrimFunc, kernel: KernelLaunch, m: int) -> dict[str, _TmaBox]:
    """The box of each of a kernel's descriptors, by its name."""
    boxes = {}
    maps = Counter(param.name for param in kernel.params if isinstance(param, TensorMap))
    for variable, param in zip(function.params, kernel.params, strict=True):
        if isinstance(param, TensorMap):
            sides = " x ".join(map(expr.text, param.box))
            words = f"boxes of {sides}, {core_matrix.described(param.swizzle)}"
            lengths = [*zip(param.box_at(m), (expr.evaluate(dim, m) for dim in param.dims), strict=True)]
            # What lies outside the tensor is filled with zeros, and not read: of boxes side by side, a part of the
            # last. Rows at an edge may have a box of their own, and boxes of D may overlap.
            tiled = 0 if param.name == "d" else 1 if maps[param.name] > 1 else len(lengths)
            inside = [dim / -(-dim // side) for side, dim in lengths[:tiled]] + [min(pair) for pair in lengths[tiled:]]
            boxes[map_name(variable)] = _TmaBox(words, prod(inside) * DTYPE_BYTES[param.dtype])
    return boxes


def _report(
    access: Access, tally: Tally, matching: Matching, unknown: str, model: BankModel, boxes: Mapping[str, _TmaBox]
) -> AccessReport:
    site, form = access.first, matching.forms[access]
    shared = site.space != "global"
    counted = {name: round(tally[name] * form.share) for name in COUNTS}
    requests = round(tally.requests * form.share)
    if site.tensor_map in boxes:
        counted["used_bytes"] = round(requests * boxes[site.tensor_map].nbytes)
    width = max((w for s in access.sites for w in matching.uses.get(s, (s.width,))), default=site.width)
    return AccessReport(
        buffer=site.buffer or (f"{site.operand} tile" if shared else site.operand),
        operand=site.operand,
        space=site.space,
        op=site.op,
        width=width,
        matrices=site.matrices,
        transposed=site.transposed,
        detail=_detail(site, boxes),
        loops=tuple(_loop_name(loop) for loop in access.loops),
        trips=tuple(_trips(loop) for loop in access.loops),
        copies=len(access.sites),
        requests=requests,
        **counted,
        aligned_bytes=0 if shared or not tally.requests else tally.aligned,
        sampled=tally.sampled,
        example=_example(site, width, tally, model),
        bound=form.bound,
        fate=form.words,
        code=form.code,
        unknown=unknown or form.missing,
    )


def _detail(site: Site, boxes: Mapping[str, _TmaBox]) -> str:
    box = boxes.get(site.tensor_map)
    return f"{site.detail}, {box.words}" if box else site.detail


def _loop_name(loop: Any) -> str:
    return loop.variable.partition(":")[2] if isinstance(loop, Loop) else "while"


def _trips(loop: Any) -> int | None:
    return int(loop.extent.value) if isinstance(loop, Loop) and loop.extent.kind == "const" else None


def _example(site: Site, width: int, tally: Tally, model: BankModel) -> Example | None:
    if tally.example is None:
        return None
    addresses, active, sources = tally.example
    shown = tuple(a if on else None for a, on in zip(addresses, active, strict=True))
    if site.space == "global":
        return Example(shown)
    kind = RequestKind.of(site)
    access = RequestKind("shared", kind.op, width, kind.matrices, kind.transposed).access
    if not model.tells(access):
        return Example(shown)
    report = wavefronts.analyze(addresses, access, active, model, sources)
    return Example(shown, tuple((p.lanes, p.banks, p.wavefronts) for p in report.phases(0)))
