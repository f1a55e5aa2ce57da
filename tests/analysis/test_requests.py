"""Requests evaluated once a class, against every block, warp and turn of every loop one by one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tirgemm.analysis.banks.wavefronts import bank_model
from tirgemm.analysis.ir.expressions import (
    LANE,
    WARP,
    DataDependent,
    IrExpr,
    const,
    evaluate,
    linear,
    make,
    symbol,
    thread_index,
    unknown,
)
from tirgemm.analysis.ir.inline_bindings import inlined
from tirgemm.analysis.ir.patterns import LANES, Requests
from tirgemm.analysis.ir.sites import Assign, If, Loop, Op, Site, SiteSpace, Statements, While
from tirgemm.analysis.simulate.counting import RequestCounter, RequestKind, Tally
from tirgemm.analysis.simulate.evaluate import Extents, run

_LEAVES = [symbol(name) for name in (LANE, WARP, "blockIdx.x", "loop%1:k", "loop%2:i")]
_EXTENTS = {"blockIdx.x": 6, WARP: 3, "loop%1:k": 5, "loop%2:i": 4}
_NUMBERS = [const(n) for n in (1, 2, 3, 4, 7, 8, 16, 32, 33, 64, 128, 256)]


def _expressions() -> st.SearchStrategy[IrExpr]:
    leaf = st.sampled_from(_LEAVES)
    scaled = st.builds(lambda a, n: make("mul", a, n), leaf, st.sampled_from(_NUMBERS))
    cut = st.builds(
        make,
        st.sampled_from(["and", "shr", "floormod", "floordiv"]),
        leaf,
        st.sampled_from(_NUMBERS[:7]),
    )
    mixed = st.builds(lambda a, b, n: make("mul", make("xor", a, b), n), leaf, leaf, st.sampled_from(_NUMBERS))
    chosen = st.builds(
        lambda a, n, x, y: make("select", make("lt", a, n), x, y), leaf, st.sampled_from(_NUMBERS[:5]), scaled, cut
    )
    return st.lists(st.one_of(scaled, cut, mixed, chosen), min_size=1, max_size=4).map(_sum)


def _sum(terms: list[IrExpr]) -> IrExpr:
    total = terms[0]
    for term in terms[1:]:
        total = make("add", total, term)
    return total


def _conditions() -> st.SearchStrategy[IrExpr]:
    kinds = st.sampled_from(["lt", "le", "eq", "ne"])
    bound = st.builds(make, kinds, _expressions(), st.integers(-5, 400).map(const))
    against = st.builds(
        lambda kind, a, b, n: make(kind, make("sub", a, const(n)), b),
        kinds,
        _expressions(),
        _expressions(),
        st.integers(0, 60),
    )
    compare = st.one_of(bound, against)
    return st.one_of(
        compare,
        st.builds(lambda a, b: make("both", a, b), compare, compare),
        st.builds(lambda a, b: make("either", a, make("not", b)), compare, compare),
    )


def _body(site: Site, condition: IrExpr) -> Statements:
    inner = If(condition, (site,), ())
    return (Loop("loop%1:k", const(5), (Loop("loop%2:i", const(4), (inner,)),)),)


def _tally(body: Statements, kind: RequestKind, extents: Extents) -> Tally:
    counter, tally = RequestCounter(bank_model("sm_90a")), Tally()

    def report(_: Site, requests: Requests) -> None:
        assert not requests.sampled
        counter.count(kind, requests, tally)

    def fail(_: Site, reason: str) -> None:
        raise AssertionError(reason)

    run(body, extents, report, fail)
    return tally


def _one_by_one(address: IrExpr, condition: IrExpr, kind: RequestKind, threads: int) -> Tally:
    counter, tally = RequestCounter(bank_model("sm_90a")), Tally()
    lanes = np.arange(LANES)
    for values in product(*(range(extent) for extent in _EXTENTS.values())):
        at = dict(zip(_EXTENTS, values, strict=True)) | {LANE: lanes}
        holds = np.broadcast_to(np.asarray(evaluate(condition, at), dtype=bool), LANES)
        holds = holds & (at[WARP] * LANES + lanes < threads)
        if holds.any():
            place = np.broadcast_to(np.asarray(evaluate(address, at), dtype=np.int64), LANES)
            counter.count(kind, Requests(place[None], holds[None], np.ones(1, np.int64)), tally)
    return tally


_ALWAYS = make("le", const(0), symbol(LANE))
# Half a line from block to block: as many sectors, but not lines. Blocks behind the edge that others still reach.
_HALF = make("add", symbol(LANE), make("mul", symbol("blockIdx.x"), const(16)))
_EDGE = make("lt", make("mul", symbol("blockIdx.x"), const(40)), make("mul", symbol(LANE), const(7)))


@example(address=_HALF, condition=_ALWAYS, threads=96, width=4, space="global", op="load")
@example(address=symbol(LANE), condition=_EDGE, threads=96, width=4, space="global", op="load")
@settings(max_examples=120, deadline=None)
@given(
    address=_expressions(),
    condition=_conditions(),
    threads=st.sampled_from([96, 70]),
    width=st.sampled_from([4, 8, 16]),
    space=st.sampled_from(["shared", "global"]),
    op=st.sampled_from(["load", "store"]),
)
def test_classes_count_as_every_request_does(
    address: IrExpr, condition: IrExpr, threads: int, width: int, space: SiteSpace, op: Op
) -> None:
    place = make("mul", address, const(width))
    site = Site(1, "s", "", space, op, width, place)
    kind = RequestKind.of(site)
    mine = _tally(_body(site, condition), kind, Extents((6, 1, 1), threads))
    other = _one_by_one(place, condition, kind, threads)
    assert (mine.requests, mine.counts.tolist()) == (other.requests, other.counts.tolist())


def test_of_requests_that_waste_as_much_the_largest_is_the_example() -> None:
    """Each has one sector beyond the fewest: 3 lanes, 32 lanes, 5 lanes."""
    counter, tally = RequestCounter(bank_model("sm_90a")), Tally()
    addresses = 28 + 2 * np.arange(LANES, dtype=np.int64)[None]
    for lanes in (3, 32, 5):
        active = np.arange(LANES)[None] < lanes
        counter.count(RequestKind("global", "load", 2), Requests(addresses, active, np.ones(1, np.int64)), tally)
    assert tally.example is not None
    assert sum(tally.example[1]) == 32
    assert tally["sectors"] - tally["fewest_sectors"] == 3


def test_classes_are_few() -> None:
    """A million requests of one pattern are evaluated once."""
    site = Site(
        1,
        "s",
        "",
        "shared",
        "load",
        4,
        make("mul", make("add", symbol(LANE), make("mul", symbol("loop%1:k"), const(32))), const(4)),
    )
    seen = []
    run((Loop("loop%1:k", const(1 << 16), (site,)),), Extents((16, 1, 1), 32), lambda _, r: seen.append(r), _never)
    assert [r.addresses.shape for r in seen] == [(1, 32)]
    assert seen[0].weights.tolist() == [1 << 20]


def _never(site: Site, reason: str) -> None:
    raise AssertionError(f"{site.op}: {reason}")


def test_registers_turn_as_they_are_assigned() -> None:
    """Tiles 3, 5, 7 ... below 20 of block 0 and 4, 6, 8 ... of block 1: eight or nine turns, of which some store."""
    tile = symbol("tile%0[0]")
    site = Site(
        1,
        "d",
        "",
        "global",
        "store",
        4,
        make("add", make("mul", tile, const(512)), make("mul", symbol(LANE), const(4))),
    )
    body: Statements = (
        Assign("tile%0[0]", make("add", symbol("blockIdx.x"), const(3))),
        While(
            make("lt", tile, const(20)),
            (
                If(make("ne", make("floormod", tile, const(5)), const(0)), (site,), ()),
                Assign("tile%0[0]", make("add", tile, const(2))),
            ),
        ),
    )
    tally = _tally(body, RequestKind.of(site), Extents((2, 1, 1), 32))
    expected = sum(t % 5 != 0 for first in (3, 4) for t in range(first, 20, 2))
    assert tally.requests == expected
    assert tally["sectors"] == 4 * expected


def test_names_keep_the_value_that_they_were_given() -> None:
    """A name is put back only where its registers do not change while it is used."""
    tile, name = symbol("tile%0[0]"), symbol("first%1")
    place = make("add", make("mul", name, const(4)), make("mul", symbol(LANE), const(4)))
    site = Site(1, "d", "", "global", "store", 4, place)
    given = Assign("first%1", make("mul", tile, const(3)))
    onwards = Assign("tile%0[0]", make("add", tile, const(1)))
    started = Assign("tile%0[0]", const(5))
    assert len(inlined((given, onwards, site))) == 3
    (put_back,) = inlined((given, site))
    assert isinstance(put_back, Site)
    assert put_back.address.symbols == {"tile%0[0]", LANE}
    for body in ((started, given, onwards, site), (started, given, site, onwards)):
        seen: list[Requests] = []
        for form in (body, inlined(body)):
            run(form, Extents((1, 1, 1), 32), lambda _, r: seen.append(r), _never)  # noqa: B023
        assert [r.addresses[0, 0] for r in seen] == [60, 60]


def test_many_turns_are_counted_from_some() -> None:
    """Of ten thousand turns a few are looked at; what all have in common is counted exactly."""
    tile = symbol("tile%0[0]")
    place = make("add", make("mul", tile, const(68)), make("mul", symbol(LANE), const(4)))
    site = Site(1, "d", "", "global", "store", 4, place)
    turns = 10_000
    body: Statements = (
        Assign("tile%0[0]", const(0)),
        While(make("lt", tile, const(turns)), (site, Assign("tile%0[0]", make("add", tile, const(1))))),
    )
    seen: list[Requests] = []
    run(body, Extents((1, 1, 1), 32), lambda _, r: seen.append(r), _never)
    assert len(seen) < 100
    assert sum(float(r.weights.sum()) for r in seen) == pytest.approx(turns)
    assert any(r.sampled for r in seen)


@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: make("add", x, symbol(LANE)), lambda x: make("mul", x, const(4))]
)
def test_unknown_values_stay_unknown(wrap: Callable[[IrExpr], IrExpr]) -> None:
    value = wrap(unknown("what a stranger said"))
    with pytest.raises(DataDependent, match="what a stranger said"):
        evaluate(value, {LANE: np.arange(LANES)})


def test_equal_expressions_are_one() -> None:
    one = make("add", make("mul", symbol(LANE), const(4)), symbol(WARP))
    assert make("add", make("mul", symbol(LANE), const(4)), symbol(WARP)) is one
    assert linear(make("sub", make("shl", one, const(3)), const(5))) == (-5, {symbol(LANE): 32, symbol(WARP): 8})


@pytest.mark.parametrize("extents", [(96, 1, 1), (16, 8, 1), (8, 4, 3), (32, 2, 2), (5, 7, 3), (1, 64, 1)])
def test_threads_are_numbered_x_first(extents: tuple[int, int, int]) -> None:
    threads = np.arange(int(np.prod(extents)))
    x, y, _ = extents
    expected = (threads % x, threads // x % y, threads // (x * y))
    at = {WARP: threads // LANES, LANE: threads % LANES}
    for axis in range(3):
        value = evaluate(thread_index(extents, axis), at)
        assert np.array_equal(np.broadcast_to(value, threads.shape), expected[axis])


@pytest.mark.parametrize("kind", ["and", "floormod", "truncmod", "shr", "floordiv", "truncdiv"])
@pytest.mark.parametrize("number", [1, 3, 4, 5, 7, 8, 31, 32, 63, 64, 95, 128])
def test_what_is_left_of_a_threads_number_is_right(kind: str, number: int) -> None:
    threads = np.arange(1024)
    whole = make("add", make("mul", symbol(WARP), const(32)), symbol(LANE))
    direct = evaluate(make(kind, symbol("thread"), const(number)), {"thread": threads})
    value = evaluate(make(kind, whole, const(number)), {WARP: threads // LANES, LANE: threads % LANES})
    assert np.array_equal(np.broadcast_to(value, threads.shape), np.broadcast_to(direct, threads.shape))
