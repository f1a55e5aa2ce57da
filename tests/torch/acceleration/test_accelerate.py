"""``accelerate``: how linears are replaced, how kernels come, and what a model may do meanwhile."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.helpers.sample_source import SampleSource
from tests.observed_calls import observed
from tests.torch.acceleration.two_linears import NARROW, WIDE, accelerated, model, rows, same
from tests.waiting import PATIENCE_S

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch


def test_every_linear_is_reported_and_replaced_by_itself() -> None:
    from tirgemm.torch import Linear

    made, x = model(), rows()
    wanted, first, names = made(x), made[0], [*made.state_dict()]
    parameters = [*made.parameters()]
    report = accelerated(made, SampleSource(stored=[WIDE, NARROW]))
    assert [linear.names for linear in report.replaced] == [("0",), ("2",)]
    assert report.gemms == (WIDE, NARROW)
    assert str(report) == (
        "2 of 2 linears replaced; 2 problems; not raced\n0: replaced\n    1..64x23x19:f32:nt:bias: tuned\n"
        "2: replaced\n    1..64x19x23:f32:nt: tuned"
    )
    assert made[0] is first
    assert type(made[0]) is type(made[2]) is Linear
    assert [*made.state_dict()] == names
    assert all(one is other for one, other in zip(made.parameters(), parameters, strict=True))
    assert same(made(x), wanted)
    report.undo()
    assert type(made[0]) is type(made[2]) is torch.nn.Linear
    assert made[0].__dict__.keys() == torch.nn.Linear(1, 1).__dict__.keys()
    assert torch.equal(made(x), wanted)
    report.undo()


def test_kernels_compute_what_the_report_says(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    accelerated(made, SampleSource(stored=[WIDE, NARROW]))
    calls: list[tuple[int, ...]] = []
    real = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", observed(real, lambda x, *_: calls.append(x.shape)))
    made(rows(5))
    made(rows(64))
    assert calls == []
    made(rows(65))
    assert calls == [(65, 19), (65, 23)], "more rows than were asked for"


def test_a_dry_run_changes_and_asks_nothing() -> None:
    made, source = model(), SampleSource(stored=[WIDE])
    report = accelerated(made, source, dry_run=True, policy="default")
    assert str(report).startswith("2 of 2 linears would be replaced; 2 problems\n0: would be replaced\n")
    assert str(report).endswith("2: would be replaced\n    1..64x19x23:f32:nt: would be made")
    assert type(made[0]) is torch.nn.Linear
    assert source.asked == []


def test_a_model_that_is_moved_cast_copied_and_pickled_goes_on() -> None:
    made, x = model(), rows()
    wanted = made(x)
    accelerated(made, SampleSource(stored=[WIDE, NARROW]), prepack=True)
    assert same(made.double()(x.double()).float(), wanted)
    assert same(made.float()(x), wanted)
    assert made.to("meta")[0](x.to("meta")).is_meta
    made = made.to_empty(device="cpu")
    made.load_state_dict(model().state_dict())
    assert same(made(x), wanted)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert same(other(x), wanted)
    torch.save(made, file := io.BytesIO())
    file.seek(0)
    assert same(torch.load(file, weights_only=False)(x), wanted)
    exported = torch.export.export(made, (x,))
    assert same(exported.module()(x), wanted)


def test_an_accelerated_model_takes_fake_tensors_and_real_ones_in_turn() -> None:
    from torch._subclasses import FakeTensorMode

    made, x = model(), rows()
    wanted = made(x)
    accelerated(made, SampleSource(stored=[WIDE, NARROW]))
    for recorded in (True, False, True):
        with torch.set_grad_enabled(recorded):
            assert same(made(x), wanted)
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            result = made(fake.from_tensor(x))
        assert (type(result).__name__, result.shape) == ("FakeTensor", wanted.shape)
    with pytest.raises(RuntimeError):
        made(x.to("meta"))
    assert same(made(x), wanted)


def test_tuned_kernels_are_swapped_in_when_they_come(table: Any) -> None:
    from tirgemm.detect import device

    made, x, source = model(), rows(), SampleSource(tuned_later=True)
    wanted = made(x)
    report = accelerated(made, source, policy="default")
    assert source.groups == [(WIDE, NARROW)], "one group"
    assert same(made(x), wanted)
    source.release.set()
    assert report.wait(PATIENCE_S)
    assert table.find(WIDE, device("cpu")).manifest.role == "tuned"
    assert [linear.problems[0][1] for linear in report.linears] == ["tuned", "tuned"]
    assert same(made(x), wanted)
    assert {linear.problems[0][1] for linear in accelerated(model(), source).linears} == {"tuned"}


def test_a_source_that_fails_in_the_middle_leaves_pytorch() -> None:
    made, x, source = model(), rows(), SampleSource(fails=True, stored=[WIDE])
    wanted = made(x)
    report = accelerated(made, source, policy="default", wait=True)
    assert report.failures == {NARROW: "the compiler went away"}
    assert [linear.problems[0][1] for linear in report.linears] == ["tuned", "no kernel: the compiler went away"]
    assert same(made(x), wanted)
    report.undo()
    assert torch.equal(made(x), wanted)


def test_two_threads_accelerate_and_undo_one_model_while_others_call_it() -> None:
    made, x = model(), rows()
    wanted, source, stop = made(x), SampleSource(stored=[WIDE, NARROW]), threading.Event()

    def call() -> bool:
        with torch.no_grad():
            right = [same(made(x), wanted)]
            while not stop.is_set():
                right.append(same(made(x), wanted))
        return all(right)

    def change() -> int:
        replaced = 0
        with torch.no_grad():
            for _ in range(10):
                report = accelerated(made, source)
                replaced += len(report.replaced)
                report.undo()
        return replaced

    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(call) for _ in range(2)]
        changers = [pool.submit(change) for _ in range(2)]
        assert sum(changer.result() for changer in changers) >= 2
        stop.set()
        assert all(caller.result() for caller in callers)
    assert type(made[0]) is torch.nn.Linear


def test_accelerating_twice_leaves_the_second_nothing_to_do_or_undo() -> None:
    from tirgemm.torch import Linear

    made, source = model(), SampleSource(stored=[WIDE, NARROW])
    first, second = accelerated(made, source), accelerated(made, source)
    assert [linear.reason for linear in second.linears] == ["it is a tirgemm.torch.Linear already"] * 2
    second.undo()
    assert type(made[0]) is Linear
    first.undo()
    assert type(made[0]) is torch.nn.Linear
