"""Evaluation of a kernel's control flow for all blocks and warps at once: the requests of every site.

Loops that change no register that matters become dimensions of the requests; the others turn, with the registers of
all warps as arrays. Nothing is computed on data: a condition, address or trip count that depends on some is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tirgemm.analysis.ir.expressions import LANE, WARP, DataDependent, IrExpr, IrValue, const, evaluate, make, symbol
from tirgemm.analysis.ir.patterns import LANES, Dimension, Integers, Requests, requests_of
from tirgemm.analysis.ir.registers import address_registers, assigned, has_sites, lane_varying
from tirgemm.analysis.ir.sites import LSU, Assign, If, Loop, Site, Statement, Statements, While, bodies_of, sites_of

# Turns of one loop that are followed at most where each leaves its registers changed.
MOST_TURNS = 1 << 16
# Sites that are looked at in all turns of a loop, and of the turns the fewest and the most.
MOST_LOOKS = 4000
_FEWEST_TURNS, _MOST_TURNS = 9, 48
# Lanes that are followed at most where each has registers of its own.
MOST_LANES = 1 << 18


@dataclass(frozen=True, slots=True)
class Extents:
    """A launch: blocks along x, y and z, and threads of a block."""

    grid: tuple[int, int, int]
    threads: int

    @property
    def warps(self) -> int:
        return -(-self.threads // LANES)


OnRequests = Callable[[Site, Requests], None]
Fail = Callable[[Site, str], None]


def run(body: Statements, extents: Extents, report: OnRequests, fail: Fail) -> None:
    """Call ``report`` with the requests of each site, as often as it is reached with registers changed; ``fail`` where
    they depend on data, with the reason."""
    needed = address_registers(body)
    _Run(body, needed, extents, report, fail).start()


@dataclass(slots=True)
class _Scope:
    """Where the run is: blocks (with warps, where registers matter), loops around, and conditions that must hold."""

    values: dict[str, IrValue]
    weights: Integers
    loops: tuple[Dimension, ...] = ()
    conditions: tuple[IrExpr, ...] = ()
    unknown: str = ""

    @property
    def size(self) -> int:
        return len(self.weights)


@dataclass(slots=True)
class _Run:
    body: Statements
    needed: frozenset[str]
    extents: Extents
    report: OnRequests
    fail: Fail
    warps: tuple[Dimension, ...] = ()
    sampled: bool = False
    quiet: bool = False
    scale: float = 1.0
    changes: dict[int, frozenset[str]] = field(default_factory=dict)
    last: dict[Site, tuple[Any, Requests]] = field(default_factory=dict)
    leaned: dict[Site, Site] = field(default_factory=dict)

    def start(self) -> None:
        grid, count = self.extents.grid, self.extents.warps
        x, y, z = (a.reshape(-1, 1) for a in np.meshgrid(*(np.arange(e) for e in grid), indexing="ij"))
        values: dict[str, IrValue] = {
            f"blockIdx.{a}": v for a, v, e in zip("xyz", (x, y, z), grid, strict=True) if e > 1
        }
        size = int(np.prod(grid))
        if self.needed:
            blocks = self.chosen(size)
            values = {name: np.repeat(value[blocks], count, axis=0) for name, value in values.items()}
            values[WARP] = np.tile(np.arange(count), len(blocks))[:, None]
            weights = np.repeat(_shares(size, len(blocks)), count)
        else:
            self.warps = (Dimension({WARP: np.arange(count)[:, None]}, np.ones(count, np.int64)),)
            weights = np.ones(size, np.int64)
        # They move whole lines: any value will do.
        values.update({name: np.asarray(0) for name in assigned(self.body) - self.needed})
        frame = _Scope(values, weights)
        if self.extents.threads % LANES:
            thread = make("add", make("mul", symbol(WARP), const(LANES)), symbol(LANE))
            frame.conditions = (make("lt", thread, const(self.extents.threads)),)
        self.block(self.body, frame)

    def chosen(self, blocks: int) -> Integers:
        """The blocks to follow: all, unless every lane of them has registers of its own and they are very many."""
        most = max(1, MOST_LANES // (self.extents.warps * LANES))
        if blocks <= most or not lane_varying(self.body) & self.needed:
            return np.arange(blocks)
        self.sampled = True
        # At random: what is evenly spaced may fall in step with rows.
        rest = np.random.default_rng(blocks).choice(np.arange(1, blocks), most - 1, replace=False)
        return np.sort(np.append(rest, 0))

    def block(self, body: Statements, frame: _Scope) -> None:
        for statement in body:
            self.statement(statement, frame)

    def statement(self, statement: Statement, frame: _Scope) -> None:
        if isinstance(statement, Site):
            self.site(statement, frame)
        elif isinstance(statement, Assign):
            if statement.register in self.needed:
                self.assign(statement, frame)
        elif not self.matters(statement):
            return
        elif isinstance(statement, If):
            self.choose(statement, frame)
        elif isinstance(statement, Loop):
            self.loop(statement, frame)
        else:
            self.turn(statement, frame)

    def site(self, site: Site, frame: _Scope) -> None:
        if self.quiet:
            return
        if frame.unknown:
            self.fail(site, frame.unknown)
            return
        lean = self.lean(site)
        used = frozenset().union(*(e.symbols for e in (lean.address, *frame.conditions, *lean.guards)))
        used |= lean.source.symbols if lean.source is not None else frozenset()
        context = Dimension({name: v for name, v in frame.values.items() if name in used}, frame.weights)
        # Turn after turn most sites see the same: blocks and warps of which they use nothing that has changed.
        key = (site, frame.conditions, frame.loops, frame.weights.tobytes(), *_shown(context.values))
        try:
            if key != self.last.get(site, (None,))[0]:
                requests = requests_of(lean, frame.conditions, (context, *self.warps, *frame.loops))
                self.last[site] = key, requests
            requests = self.last[site][1]
            if self.sampled:
                requests = replace(requests, weights=requests.weights * self.scale, sampled=True)
            self.report(site, requests)
        except DataDependent as error:
            self.fail(site, str(error))

    def lean(self, site: Site) -> Site:
        """``site`` without an address where nothing is counted by it."""
        if site.op in LSU:
            return site
        leaned = self.leaned.get(site)
        if leaned is None:
            leaned = self.leaned[site] = replace(site, address=const(0))
        return leaned

    def assign(self, statement: Assign, frame: _Scope) -> None:
        try:
            if frame.unknown:
                raise DataDependent(frame.unknown)
            value = np.asarray(evaluate(statement.value, {**frame.values, LANE: np.arange(LANES)[None, :]}))
            held = self.holding(frame)
            if held is not None:
                before = frame.values.get(statement.register)
                if isinstance(before, str):
                    raise DataDependent(before)
                value = np.where(held, value, 0 if before is None else before)
            frame.values[statement.register] = value
        except DataDependent as error:
            frame.values[statement.register] = str(error)

    def holding(self, frame: _Scope) -> IrValue | None:
        """For which lanes the conditions around hold, None where for all."""
        if not frame.conditions:
            return None
        environment = {**frame.values, LANE: np.arange(LANES)[None, :]}
        held = np.asarray(True)
        for condition in frame.conditions:
            held = held & np.asarray(evaluate(condition, environment), dtype=np.bool_)
        return held

    def choose(self, statement: If, frame: _Scope) -> None:
        condition = statement.condition
        local = not any(condition.symbols & frozenset(d.values) for d in (*frame.loops, *self.warps))
        try:
            if not local:
                if condition.unknown:
                    raise DataDependent(condition.unknown)
                self.guarded(statement, condition, frame)
                return
            value = np.asarray(evaluate(condition, {**frame.values, LANE: np.arange(LANES)[None, :]}), dtype=np.bool_)
        except DataDependent as error:
            reason = f"a condition depends on {error}"
            for branch in (statement.then, statement.otherwise):
                self.part(branch, frame, None, (), reason)
            return
        if value.ndim < 2 or value.shape[1] == 1:
            flags = np.broadcast_to(value.reshape(-1), (frame.size,)) if value.size == 1 else value[:, 0]
            for branch, chosen in ((statement.then, flags), (statement.otherwise, ~flags)):
                if branch and chosen.any():
                    self.part(branch, frame, chosen if not chosen.all() else None, (), "")
            return
        if not condition.symbols & self.needed:
            self.guarded(statement, condition, frame)
            return
        # Registers in the condition may change inside: what it was now is kept.
        name = f"%condition{len(frame.conditions)}:{id(condition)}"
        frame.values[name] = np.asarray(np.broadcast_to(value, (frame.size, LANES)), dtype=np.int64)
        try:
            self.guarded(statement, make("ne", symbol(name), const(0)), frame)
        finally:
            frame.values.pop(name, None)

    def guarded(self, statement: If, condition: IrExpr, frame: _Scope) -> None:
        for branch, guard in ((statement.then, condition), (statement.otherwise, make("not", condition))):
            if branch:
                self.part(branch, frame, None, (guard,), "")

    def part(
        self, branch: Statements, frame: _Scope, chosen: IrValue | None, guards: tuple[IrExpr, ...], unknown: str
    ) -> None:
        """Run a branch for some of the frame's blocks, and take over the registers that it changed."""
        if not branch:
            return
        inner = self.taken(frame, chosen)
        inner.conditions += guards
        inner.unknown = inner.unknown or unknown
        self.block(branch, inner)
        self.merge(frame, inner, chosen, self.changed(branch))

    def taken(self, frame: _Scope, chosen: IrValue | None) -> _Scope:
        if chosen is None:
            return replace(frame, values=dict(frame.values))
        values = {
            name: value[chosen] if np.ndim(value) and len(value) == frame.size > 1 else value
            for name, value in frame.values.items()
        }
        return replace(frame, values=values, weights=frame.weights[chosen])

    def merge(self, frame: _Scope, inner: _Scope, chosen: IrValue | None, names: frozenset[str]) -> None:
        for name in names:
            if name not in inner.values:
                continue
            new = inner.values[name]
            if chosen is None or isinstance(new, str):
                frame.values[name] = new
                continue
            before = frame.values.get(name, 0)
            if isinstance(before, str):
                # The blocks that did not come here hold what is not known: they keep it.
                frame.values[name] = before
                continue
            width = max((np.shape(v)[1] for v in (before, new) if np.ndim(v) == 2), default=1)
            whole = np.broadcast_to(np.asarray(before, dtype=np.int64), (frame.size, width)).copy()
            whole[chosen] = new
            frame.values[name] = whole

    def loop(self, statement: Loop, frame: _Scope) -> None:
        name, extent = statement.variable, statement.extent
        try:
            if frame.unknown:
                raise DataDependent(frame.unknown)
            size = self.most(extent, frame)
        except DataDependent as error:
            self.part(statement.body, frame, None, (), f"a trip count depends on {error}")
            return
        guards = () if extent.kind == "const" else (make("lt", symbol(name), extent),)
        if self.changed(statement.body):
            if size > MOST_TURNS:
                self.part(statement.body, frame, None, (), f"{name} turns {size} times, more than are followed")
                return
            for turn in range(size):
                frame.values[name] = np.asarray(turn)
                self.choose(If(guards[0], statement.body, ()), frame) if guards else self.block(statement.body, frame)
            frame.values.pop(name, None)
        elif size:
            inner = replace(frame, values=dict(frame.values))
            inner.loops += (Dimension({name: np.arange(size)[:, None]}, np.ones(size, np.int64)),)
            inner.conditions += guards
            self.block(statement.body, inner)

    def most(self, extent: IrExpr, frame: _Scope) -> int:
        """The most turns that any block makes."""
        values: Mapping[str, IrValue] = {LANE: np.arange(LANES)[None, :]}
        for dimension in (*self.warps, *frame.loops):
            if extent.symbols & frozenset(dimension.values):
                values = {**values, **dimension.values}
        return max(0, int(np.max(evaluate(extent, {**frame.values, **values}))))

    def turn(self, statement: While, frame: _Scope) -> None:
        """Turn a loop until no block goes on; of many turns those between the first and the last are looked at now and
        then."""
        looks = min(max(MOST_LOOKS // max(1, len(sites_of(statement.body))), _FEWEST_TURNS), _MOST_TURNS)
        for _ in range(looks // 3):
            if not self.once(statement, frame):
                return
        if self.quiet:
            for _ in range(MOST_TURNS):
                if not self.once(statement, frame):
                    break
            return
        left = self.turns_left(statement, frame)
        middle = max(0, left - max(2, looks // 6))
        looked = {int(n) for n in np.linspace(0, middle, min(middle, looks // 2), endpoint=False)}
        scale, sampled = self.scale, self.sampled
        for number in range(left):
            self.quiet = number < middle and number not in looked
            if number < middle and len(looked) < middle:
                self.scale, self.sampled = scale * middle / len(looked), True
            else:
                self.scale, self.sampled = scale, sampled
            self.once(statement, frame)
        self.quiet, self.scale, self.sampled = False, scale, sampled

    def turns_left(self, statement: While, frame: _Scope) -> int:
        """How many more turns there are."""
        trial = replace(frame, values=dict(frame.values))
        self.quiet = True
        turns = 0
        while turns < MOST_TURNS and self.once(statement, trial):
            turns += 1
        self.quiet = False
        return turns

    def once(self, statement: While, frame: _Scope) -> bool:
        """One turn of a loop for the blocks that go on; whether there are any."""
        try:
            value = evaluate(statement.condition, {**frame.values, LANE: np.arange(LANES)[None, :]})
            held = self.holding(frame)
            if not np.any(np.asarray(value, dtype=np.bool_) & np.asarray(True if held is None else held)):
                return False
        except DataDependent as error:
            self.part(statement.body, frame, None, (), f"a loop's end depends on {error}")
            return False
        self.choose(If(statement.condition, statement.body, ()), frame)
        return True

    def changed(self, body: Statements) -> frozenset[str]:
        registers = self.changes.get(id(body))
        if registers is None:
            registers = self.changes[id(body)] = assigned(body) & self.needed
        return registers

    def matters(self, statement: If | Loop | While) -> bool:
        return any((not self.quiet and has_sites(b)) or self.changed(b) for b in bodies_of(statement))


def _shares(total: int, parts: int) -> Integers:
    """``total`` as so many numbers that differ by one at most."""
    return np.full(parts, total // parts, np.int64) + (np.arange(parts) < total % parts)


def _shown(values: Mapping[str, IrValue]) -> tuple[Any, ...]:
    """Values as what can be compared."""
    return tuple((name, v if isinstance(v, str) else np.asarray(v).tobytes()) for name, v in sorted(values.items()))
