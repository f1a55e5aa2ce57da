"""``accelerate``: the linears of a model replaced by ones that kernels compute, with a report, and undone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

import tirgemm
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, MissingExtra, TirgemmError
from tirgemm.gemm import MAX_SIZE, Gemm, Range
from tirgemm.kernel_source import KernelSource, Policy, Preparation, policy_named
from tirgemm.torch.kernel_table import TABLE, is_tuned
from tirgemm.torch.linear_module import Linear, become, become_plain
from tirgemm.torch.linear_problems import LinearProblems, linears_of
from tirgemm.torch.linear_race import lost_rows, raced_rows
from tirgemm.torch.model_race import RacedKernel, chain, dropped, observed_rows
from tirgemm.torch.prepared_call import SLOWER
from tirgemm.torch.service_kernels import ServiceKernels

if TYPE_CHECKING:
    from tirgemm.artifact import Kernel
    from tirgemm.client import Client

Rows: TypeAlias = "int | Range | Iterable[int | Range]"
ANY_ROWS = Range(1, 8192)
BEING_MADE = "being made"
_USABLE = ("tuned", "default", BEING_MADE)
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class LinearReport:
    """What became of one linear: its ``names`` in the model, the problems of its calls, each with the kernel that is
    there (``tuned``, ``default``, ``being made``) or why there is none, and why it was left alone, if it was."""

    names: tuple[str, ...]
    problems: tuple[tuple[Gemm, str], ...]
    replaced: bool
    reason: str

    def __str__(self) -> str:
        what = "replaced" if self.replaced else f"left alone: {self.reason}"
        lines = [f"{' = '.join(self.names) or '(the model)'}: {what}"]
        return "\n".join([*lines, *(f"    {gemm}: {kernel}" for gemm, kernel in self.problems)])


def _words(kernel: Kernel | None) -> str:
    if kernel is None:
        return "no kernel: none is registered, and there is no source of kernels"
    return "tuned" if is_tuned(kernel) else "default"


class _Kernels:
    """The kernels of one linear's problems: what was said of each as they were looked up, and which are wanted."""

    def __init__(self, linear: LinearProblems, source: KernelSource | None, policy: Policy) -> None:
        self.linear = linear
        self.wanted: list[Gemm] = []
        self._said = {gemm: self._looked_up(gemm, source, policy) for gemm in linear.gemms}
        usable = any(words in _USABLE for words in self._said.values())
        invariant = any(gemm.invariant for gemm in linear.gemms)
        self.reason = linear.reason or ("" if usable else "no invariant kernel" if invariant else "no kernel")

    def report(self, failures: Mapping[Gemm, str]) -> LinearReport:
        """What became of the linear, with the kernels that it has now."""
        problems = tuple((gemm, self._now(gemm, failures)) for gemm in self._said)
        return LinearReport(self.linear.names, problems, not self.reason, self.reason)

    def _now(self, gemm: Gemm, failures: Mapping[Gemm, str]) -> str:
        device = self.linear.device
        kernel = TABLE.find(gemm, device) if device is not None else None
        left = TABLE.left(gemm, device) if device is not None else {}
        told = ", ".join(
            f"{ratio:.3f} of its time for {rows if rows.low < rows.high else rows.low} rows"
            for rows, ratio in left.items()
        )
        if kernel is not None:
            return f"{_words(kernel)}; {SLOWER}, {told}" if left else _words(kernel)
        if left:
            return f"{SLOWER}, {told}"
        return f"no kernel: {failures[gemm]}" if gemm in failures else self._said[gemm]

    def _looked_up(self, gemm: Gemm, source: KernelSource | None, policy: Policy) -> str:
        """What there is for one problem, which the table of kernels then has; what is to be made is ``wanted``."""
        device = self.linear.device
        if device is None:
            return self.linear.reason
        kernel = TABLE.find(gemm, device)
        try:
            if source is not None and (kernel is None or not is_tuned(kernel)):
                kernel = source.lookup(gemm, device) or kernel
            if kernel is not None:
                TABLE.add(kernel)
            if source is None or (kernel is not None and (is_tuned(kernel) or not source.tunes)):
                return _words(kernel)
            refusal = source.refusal(gemm, device, policy)
        except TirgemmError as error:
            return _words(kernel) if kernel is not None else f"no kernel: {error}"
        if refusal is None:
            self.wanted.append(gemm)
        if kernel is not None:
            return _words(kernel)
        return BEING_MADE if refusal is None else f"no kernel: {refusal}"


@dataclass
class Acceleration:
    """What ``accelerate`` did to a model, or with ``dry_run`` would do: a report that prints, and undoes."""

    dry_run: bool
    _kernels: tuple[_Kernels, ...] = field(repr=False)
    preparations: tuple[Preparation, ...] = ()
    _replaced: list[nn.Linear] = field(default_factory=list, repr=False)
    _measured: bool | None = False
    _raced: set[str] = field(default_factory=set, repr=False)

    @property
    def linears(self) -> tuple[LinearReport, ...]:
        """Every linear of the model, with the kernels that it has now."""
        return tuple(each.report(self.failures) for each in self._kernels)

    @property
    def replaced(self) -> tuple[LinearReport, ...]:
        """Those that kernels compute."""
        return tuple(linear for linear in self.linears if linear.replaced)

    @property
    def gemms(self) -> tuple[Gemm, ...]:
        """The problems of all linears, each once."""
        return tuple(dict.fromkeys(gemm for linear in self.linears for gemm, _ in linear.problems))

    @property
    def failures(self) -> dict[Gemm, str]:
        """What became of kernels that were to be made and are not, so far."""
        return {gemm: why for preparation in self.preparations for gemm, why in preparation.failures.items()}

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until no kernel is being made any more, at most so long for each device; whether that is so. Then those
        that have come since are raced, where ``accelerate`` was to."""
        for preparation in self.preparations:
            preparation.wait(seconds)
        done = all(preparation.finished.is_set() for preparation in self.preparations)
        if done:
            with _one_at_a_time:
                self._race(all_made=True)
        return done

    def race(self, call: Callable[[], object], *, graph: bool = False) -> None:
        """Run the model by ``call`` with and without each kernel that it uses, and leave PyTorch the rows of those
        without which it is faster; of all, where it is not faster with the rest.

        ``graph`` captures the call in CUDA graphs, for a model that will run so. Takes some hundred calls, which must
        all do the same: a cache that each makes longer, say, is not for it. Nothing else should use the model or the
        device meanwhile. Raises InvalidRequest for a graph without a GPU, and what ``call`` raises.
        """
        if graph and not torch.cuda.is_available():
            raise InvalidRequest("graph=True needs a GPU: CUDA graphs are captured there")
        with _one_at_a_time:
            calls = observed_rows(call, [linear.module for linear in self._replaced_linears()])
            self._leave(dropped(call, self._raced_kernels(calls), graph=graph))
            self._give_back(all_made=all(preparation.finished.is_set() for preparation in self.preparations))

    def _race(self, *, all_made: bool) -> None:
        """Race the kernels that are there and were not raced yet, alone and among the model's other linears, and give
        back linears of which PyTorch is left all rows, but before ``all_made`` none for which a better kernel may
        come."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        self._race_in_order(self._race_alone())
        self._give_back(all_made=all_made)

    def _race_alone(self) -> list[tuple[Kernel, Device]]:
        """Race each kernel on the linears that it computes; those that were raced now."""
        groups: dict[tuple[Gemm, Device], list[nn.Linear]] = {}
        for linear in self._replaced_linears():
            for gemm in linear.gemms:
                if linear.device is not None and self._races(gemm, linear.device):
                    groups.setdefault((gemm, linear.device), []).append(linear.module)
        raced = []
        for (gemm, device), modules in groups.items():
            kernel = TABLE.find(gemm, device)
            if kernel is not None and kernel.kernel_sha256 not in self._raced:
                self._raced.add(kernel.kernel_sha256)
                TABLE.leave(kernel, lost_rows(kernel, modules))
                raced.append((kernel, device))
        return raced

    def _race_in_order(self, fresh: Sequence[tuple[Kernel, Device]]) -> None:
        """Race what won alone among all linears that take as many rows, in the model's order."""
        for device in dict.fromkeys(device for _, device in fresh):
            ends = {rows.high for kernel, place in fresh if place == device for rows in raced_rows(kernel)}
            for m in sorted(ends):
                modules = [
                    linear.module
                    for linear in self._replaced_linears()
                    if linear.device == device and any(gemm.m_min <= m <= gemm.m_max for gemm in linear.gemms)
                ]
                raced = [
                    each for each in self._raced_kernels([(module, m) for module in modules]) if each.rows.high == m
                ]
                # One that computes them all was raced so.
                if raced and len(raced[0].modules) < len(modules):
                    self._leave(dropped(chain(m, modules), raced, graph=True))

    def _raced_kernels(self, calls: Sequence[tuple[nn.Linear, int]]) -> list[RacedKernel]:
        """The kernels of calls of these modules with so many rows, but no invariant ones."""
        linears = {id(linear.module): linear for linear in self._replaced_linears()}
        modules: dict[tuple[str, Range], list[nn.Linear]] = {}
        kernels: dict[str, Kernel] = {}
        for module, m in calls:
            linear = linears.get(id(module))
            if linear is None or linear.device is None:
                continue
            gemm = next((g for g in linear.gemms if g.m_min <= m <= g.m_max), None)
            if gemm is None or gemm.invariant:
                continue
            kernel = TABLE.find(gemm.with_(m=m), linear.device)
            if kernel is not None:
                rows = next(each for each in raced_rows(kernel) if each.low <= m <= each.high)
                kernels[kernel.kernel_sha256] = kernel
                modules.setdefault((kernel.kernel_sha256, rows), []).append(module)
        return [RacedKernel(kernels[sha256], rows, tuple(each)) for (sha256, rows), each in modules.items()]

    def _leave(self, lost: Mapping[RacedKernel, float]) -> None:
        for each, ratio in lost.items():
            TABLE.leave(each.kernel, TABLE.left(each.kernel.gemm, each.kernel.device) | {each.rows: ratio})

    def _give_back(self, *, all_made: bool) -> None:
        ours = {id(linear.module) for linear in self._replaced_linears()}
        for each in self._kernels:
            place = each.linear.device
            if id(each.linear.module) not in ours or place is None or (each.wanted and not all_made):
                continue
            if all(TABLE.leaves(gemm, place) for gemm in each.linear.gemms):
                each.reason = SLOWER
                become_plain(each.linear.module)
                self._replaced.remove(each.linear.module)

    def _replaced_linears(self) -> list[LinearProblems]:
        """Those that are as ``accelerate`` left them: others may have made them something else since, as
        ``parametrize`` does."""
        ours = {id(module) for module in self._replaced if type(module) is Linear}
        return [each.linear for each in self._kernels if id(each.linear.module) in ours]

    def _races(self, gemm: Gemm, device: Device) -> bool:
        measured = device.kind == "cuda" if self._measured is None else self._measured
        return measured and not gemm.invariant

    def undo(self) -> None:
        """Give the model back as it was, and make no more kernels. Does nothing the second time."""
        for preparation in self.preparations:
            preparation.cancel()
        with _one_at_a_time:
            while self._replaced:
                module = self._replaced.pop()
                if type(module) is Linear:
                    become_plain(module)

    def __str__(self) -> str:
        verb = "would be replaced" if self.dry_run else "replaced"
        first = f"{len(self.replaced)} of {len(self.linears)} linears {verb}; {len(self.gemms)} problems"
        return "\n".join([first, *map(str, self.linears)])


def accelerate(
    model: nn.Module,
    *,
    rows: Rows = ANY_ROWS,
    source: KernelSource | None = None,
    client: Client | None = None,
    policy: Policy = "shipped",
    dry_run: bool = False,
    wait: bool | float = False,
    prepack: bool = False,
    invariant: bool = False,
    measured: bool | None = None,
) -> Acceleration:
    """Have kernels compute the linears of ``model``, which is changed in place, and report what became of each.

    ``rows``: for how many rows of input (all dimensions before the last together) kernels are wanted: numbers, and
    Ranges that one kernel serves; a call with other rows is PyTorch's. Kernels that are there are used at once: those
    that are registered and those that ``source`` has, by default the user's tuning database, or the service of
    ``client``. Missing ones are made in the background as one group, as the policy lets: none (``tuned``), those of
    shipped records (``shipped``), any default (``default``); a service tunes all of them. They are swapped in when
    they come, and PyTorch computes until then; a captured CUDA graph goes on with the kernel that it captured. ``wait``
    waits for them, True for all, a number for so many seconds.

    Each ``torch.nn.Linear`` becomes a ``tirgemm.torch.Linear``: the same object, parameters, hooks and names.
    Subclasses of ``torch.nn.Linear`` are left alone, and, where gradients are recorded as ``accelerate`` is called, a
    linear whose parameters require grad. With ``dry_run`` nothing is changed, made or asked of a service to be made.
    ``prepack`` keeps weights on a CPU packed, as ``Linear`` says. ``invariant`` asks for and uses only kernels that
    give a row the same bits whatever the other rows are.

    ``measured``, by default on GPUs, races kernels that are there when this or the report's ``wait`` returns against
    PyTorch on the model's weights, for some tenths of a second a number of rows, alone and among the model's other
    linears, and leaves PyTorch the rows for which they are not clearly faster, of invariant ones none. The report's
    ``race`` does so in the model itself. Raises InvalidRequest.
    """
    policy_named(policy)
    numbers = row_counts(rows)
    chosen = _source(source, client)
    with _one_at_a_time:
        linears = linears_of(model, numbers, invariant=invariant)
        kernels = tuple(_Kernels(linear, chosen, policy) for linear in linears)
        wanted: dict[Device, list[Gemm]] = {}
        for each in kernels:
            if each.wanted and each.linear.device is not None:
                wanted.setdefault(each.linear.device, []).extend(each.wanted)
        done = Acceleration(dry_run, kernels, _measured=measured)
        if not dry_run:
            for each in kernels:
                if not each.reason:
                    become(each.linear.module, prepack=prepack, invariant=invariant)
                    done._replaced.append(each.linear.module)
            done._race(all_made=False)
            if chosen is not None:
                groups = {device: tuple(dict.fromkeys(gemms)) for device, gemms in wanted.items()}
                done.preparations = tuple(
                    chosen.prepare(gemms, device, policy, TABLE.add) for device, gemms in groups.items()
                )
    if wait is not False:
        done.wait(None if wait is True else float(wait))
    return done


def row_counts(rows: Rows) -> tuple[int | Range, ...]:
    """``rows`` as numbers and Ranges. Raises InvalidRequest."""
    listed = [rows] if isinstance(rows, (int, Range)) else list(rows)
    for each in listed:
        low, high = (each.low, each.high) if isinstance(each, Range) else (each, each)
        if type(low) is not int or type(high) is not int or not 1 <= low <= high <= MAX_SIZE:
            raise InvalidRequest(f"rows is {each!r}; it must be a number from 1 to {MAX_SIZE}, or a Range of two")
    if not listed:
        raise InvalidRequest("rows is empty; give the numbers of rows that the model is called with, or a Range")
    return tuple(dict.fromkeys(listed))


def _source(source: KernelSource | None, client: Client | None) -> KernelSource | None:
    """Where kernels come from; None where nothing but what is registered is to be had."""
    if source is not None and client is not None:
        raise InvalidRequest("give either source or client, not both")
    if client is not None:
        return ServiceKernels(client)
    if source is not None:
        return source
    try:
        local: KernelSource = tirgemm.LocalKernels()
    except MissingExtra:
        return None
    return local
