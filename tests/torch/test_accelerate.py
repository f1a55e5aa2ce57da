"""``accelerate``: which linears of a model are replaced and why not, what stays as it was, and how kernels come."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from tests.helpers.sample_source import SampleSource
from tests.observed_calls import observed
from tests.torch.restored_table import restored_table
from tests.waiting import PATIENCE_S
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm, Range

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

WIDE, NARROW = Gemm(Range(1, 64), 23, 19, "f32", "nt", bias=True), Gemm(Range(1, 64), 19, 23, "f32", "nt")


@pytest.fixture(autouse=True)
def table() -> Iterator[Any]:
    """A table that is as it was once the test is over."""
    with restored_table() as kept:
        yield kept


def model() -> Any:
    nn = torch.nn
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(19, 23), nn.ReLU(), nn.Linear(23, 19, bias=False), nn.LayerNorm(19))


def rows(m: int = 5) -> Any:
    return torch.randn(m, 19)


def accelerated(made: Any, source: Any, **more: Any) -> Any:
    from tirgemm.torch import accelerate

    return accelerate(made, rows=Range(1, 64), source=source, **more)


def same(one: Any, other: Any) -> bool:
    return bool(torch.allclose(one, other, atol=1e-5))


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
    assert str(report).endswith("2: would be replaced\n    1..64x19x23:f32:nt: being made")
    assert type(made[0]) is torch.nn.Linear
    assert source.asked == []


def test_numbers_of_rows_are_problems_of_their_own() -> None:
    from tirgemm.torch import accelerate

    report = accelerate(model(), rows=[1, 16, Range(1, 64)], source=SampleSource(), policy="default", dry_run=True)
    assert [str(gemm) for gemm in report.gemms[:3]] == [
        "1x23x19:f32:nt:bias",
        "16x23x19:f32:nt:bias",
        "1..64x23x19:f32:nt:bias",
    ]
    refused: tuple[tuple[Any, str], ...] = (
        ([], "rows is empty"),
        (0, "rows is 0"),
        ([True], "rows is True"),
        (Range(5, 2), "rows is Range"),
        (16.0, r"rows is 16\.0; it must be a number from 1 to"),
        (None, "rows is None"),
        ("16", "rows is '16'"),
        ([1, 16.0], r"rows is 16\.0"),
    )
    for wrong, says in refused:
        with pytest.raises(InvalidRequest, match=says):
            accelerate(model(), rows=wrong)
    with pytest.raises(InvalidRequest, match=r"model is tensor\(.*; give a torch\.nn\.Module"):
        accelerate(cast(Any, torch.ones(2)))
    with pytest.raises(InvalidRequest, match="policy is 'best'"):
        accelerate(model(), **unchecked(policy="best"))


def test_numbers_of_rows_may_be_integers_of_any_type() -> None:
    import numpy as np

    from tirgemm.torch import accelerate

    one: Any = np.int64(1)
    given: tuple[tuple[Any, list[int | Range]], ...] = (
        (np.int64(16), [16]),
        (np.array([3, 16]), [3, 16]),
        (torch.tensor(16), [16]),
        ([Range(one, 16)], [Range(1, 16)]),
    )
    for rows, expected in given:
        report = accelerate(model(), rows=rows, source=SampleSource(), policy="default", dry_run=True)
        assert [gemm.m for gemm in report.gemms[: len(expected)]] == expected
        assert {type(gemm.m) for gemm in report.gemms} <= {int, Range}


def unchecked(**keywords: Any) -> Any:
    """Keywords that the types would refuse."""
    return keywords


def twice(linear: Any, x: Any) -> Any:
    return 2 * torch.nn.Linear.forward(linear, x)


Scaled: Any = type("Scaled", (torch.nn.Linear,), {"forward": twice})


def with_parameters(*parameters: Any) -> Any:
    """A linear with this weight, and this bias or none."""
    made = torch.nn.Linear(19, 23)
    made.weight, made.bias = ([torch.nn.Parameter(each) for each in parameters] + [None])[:2]
    return made


def odd_linears() -> dict[str, tuple[Any, str]]:
    from torch.nn.utils import prune

    nn = torch.nn
    patched = nn.Linear(19, 23)
    patched.forward = lambda x: x
    pruned = prune.l1_unstructured(nn.Linear(19, 23), "weight", 3)
    strided = nn.Linear(19, 23, bias=False)
    strided.weight = nn.Parameter(torch.randn(23, 38)[:, ::2])
    return {
        "subclass": (Scaled(19, 23), "it is a Scaled, which may compute something else"),
        "lazy": (nn.LazyLinear(23), "it is a LazyLinear"),
        "parametrized": (torch.nn.utils.parametrizations.weight_norm(nn.Linear(19, 23)), "it is a ParametrizedLinear"),
        "pruned": (pruned, "its weight or its bias is no parameter"),
        "patched": (patched, "its forward was replaced"),
        "double": (nn.Linear(19, 23).double(), "its parameters are not for kernels: float64"),
        "meta": (nn.Linear(19, 23, device="meta"), "its parameters are not for kernels: meta tensor"),
        "gaps": (strided, "its parameters are not for kernels: strides"),
        "empty": (nn.Linear(0, 23), "gemm field k is 0"),
        "shard": (with_parameters(torch.randn(5)), "its parameters are not for kernels: shapes (5,)"),
        "gathered later": (with_parameters(torch.randn(0)), "its parameters are not for kernels: shapes (0,)"),
        "bias of one": (
            with_parameters(torch.randn(23, 19), torch.randn(1)),
            "its parameters are not for kernels: shapes (23, 19), (1,)",
        ),
        "not written": (nn.Linear(19, 31), "no kernel"),
    }


@pytest.mark.parametrize("kind", odd_linears())
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_plain_linear_is_left_alone_with_the_reason(kind: str) -> None:
    linear, reason = odd_linears()[kind]
    source = SampleSource(refuses=[Gemm(Range(1, 64), 31, 19, "f32", "nt", bias=True)])
    before = type(linear)
    report = accelerated(torch.nn.Sequential(linear), source, policy="default")
    (entry,) = report.linears
    assert not entry.replaced
    assert entry.reason.startswith(reason), entry
    assert type(linear) is before
    assert source.asked == []


def test_a_weight_of_other_sizes_than_the_linear_was_made_with_is_asked_for_by_its_own() -> None:
    linear = with_parameters(torch.randn(7, 19))
    report = accelerated(linear, SampleSource(), policy="default")
    assert report.gemms == (Gemm(Range(1, 64), 7, 19, "f32", "nt"),)


def test_a_linear_in_training_is_left_alone_unless_gradients_are_off() -> None:
    made = model()
    made[2].requires_grad_(False)
    with torch.enable_grad():
        report = accelerated(made, SampleSource(stored=[WIDE, NARROW]))
    assert [linear.replaced for linear in report.linears] == [False, True]
    assert "its parameters require grad and gradients are recorded" in report.linears[0].reason
    assert accelerated(made, SampleSource(stored=[WIDE, NARROW])).linears[0].replaced
    with torch.enable_grad():
        made(rows()).sum().backward()
    assert made[0].weight.grad is not None, "PyTorch computes where gradients are recorded"


def test_tied_weights_hooks_and_modules_that_occur_twice_stay() -> None:
    nn = torch.nn
    made = nn.ModuleDict({"embedding": nn.Embedding(23, 19), "head": nn.Linear(19, 23, bias=False)})
    made["head"].weight = made["embedding"].weight
    made["again"] = made["head"]
    seen: list[str] = []
    hook = observed(lambda _module, _given, result: 2 * result, lambda *_: seen.append("hook"))
    made["head"].register_forward_hook(hook)
    x = rows()
    wanted = made["head"](x)
    tied = Gemm(Range(1, 64), 23, 19, "f32", "nt")
    report = accelerated(made, SampleSource(stored=[tied]))
    assert [linear.names for linear in report.linears] == [("head", "again")]
    assert made["head"].weight is made["embedding"].weight
    assert same(made["head"](x), wanted)
    made["embedding"].weight.mul_(3)
    assert same(made["again"](x), 3 * wanted)
    assert len(seen) == 3
    state = made.state_dict()
    state["embedding.weight"] = state["head.weight"] = state["again.weight"] = torch.ones(23, 19)
    made.load_state_dict(state)
    assert same(made["head"](x), 2 * x.sum(1, keepdim=True).expand(5, 23))


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


def test_a_source_and_a_client_are_not_given_together(table: Any) -> None:
    from tirgemm.torch import accelerate

    del table
    with pytest.raises(InvalidRequest, match="give either source or client, not both"):
        accelerate(model(), **unchecked(source=SampleSource(), client=object()))


@pytest.mark.parametrize("source", ["http://127.0.0.1:8000", SampleSource], ids=str)
def test_what_is_no_source_of_kernels_is_refused(source: Any) -> None:
    from tirgemm.torch import accelerate, routed

    with pytest.raises(InvalidRequest, match="give an object with the methods of"):
        accelerate(model(), source=source)
    with pytest.raises(InvalidRequest, match="give an object with the methods of"), routed(source=source):
        pass
    with pytest.raises(InvalidRequest, match=r"client is .*; give a tirgemm.Client"):
        accelerate(model(), client=source)


@pytest.mark.parametrize("wait", ["soon", -1, float("nan"), None], ids=repr)
def test_a_wait_of_no_number_is_refused_before_anything_is_done(wait: Any) -> None:
    from tirgemm.torch import accelerate

    source = SampleSource()
    with pytest.raises(InvalidRequest, match="it must be True, False or a number of seconds from 0"):
        accelerate(model(), source=source, policy="default", wait=wait)
    assert source.asked == []


@pytest.mark.parametrize("wait", [1e20, float("inf")])
def test_a_wait_beyond_what_a_thread_can_wait_has_no_end(wait: float) -> None:
    assert accelerated(model(), SampleSource(), policy="default", wait=wait).preparations[0].finished.is_set()


@pytest.mark.parametrize("name", ["dry_run", "prepack", "invariant", "dependent_launch", "measured"])
def test_a_flag_that_is_none_is_refused_before_anything_is_done(name: str) -> None:
    made, source = model(), SampleSource(stored=[WIDE, NARROW])
    with pytest.raises(InvalidRequest, match=f"^{name} is 'x'; it must be True"):
        accelerated(made, source, **{name: "x"})
    assert type(made[0]) is torch.nn.Linear
    assert source.asked == []


def test_without_the_tuner_kernels_are_those_that_are_registered(monkeypatch: pytest.MonkeyPatch, table: Any) -> None:
    import tirgemm
    from tirgemm.errors import MissingExtra
    from tirgemm.torch import accelerate

    def absent() -> None:
        raise MissingExtra("tirgemm.LocalKernels needs the extra tune")

    monkeypatch.setattr(tirgemm, "LocalKernels", absent, raising=False)
    table.add(SampleSource().kernel(WIDE, "tuned"))
    report = accelerate(model(), rows=Range(1, 64))
    assert [linear.replaced for linear in report.linears] == [True, False]
    assert report.linears[1].problems[0][1] == "no kernel: none is registered, and there is no source of kernels"
