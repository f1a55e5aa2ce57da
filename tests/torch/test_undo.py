"""What ``undo`` and ``restore`` give back, what an ``accelerate`` that fails leaves, and what the report holds."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.helpers.sample_source import SampleSource
from tests.torch.restored_table import restored_table
from tests.waiting import PATIENCE_S
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.kernel_source import Preparation

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

GEMM = Gemm(5, 23, 19, "f32", "nt", bias=True)


@pytest.fixture(autouse=True)
def table() -> Iterator[Any]:
    """A table that is as it was once the test is over."""
    with restored_table() as kept:
        yield kept


def accelerated(made: Any, source: Any, **more: Any) -> Any:
    from tirgemm.torch import accelerate

    return accelerate(made, **{"rows": 5, "source": source, "policy": "default", "wait": True} | more)


def test_a_report_says_that_its_model_was_given_back() -> None:
    made = torch.nn.Sequential(torch.nn.Linear(19, 23))
    report = accelerated(made, SampleSource(stored=[GEMM]))
    report.undo()
    assert report.replaced == ()
    assert str(report) == (f"0 of 1 linears replaced; 1 problems\n0: left alone: undo gave it back\n    {GEMM}: tuned")
    assert len(accelerated(made, SampleSource()).replaced) == 1


def test_a_report_says_what_others_have_made_of_a_linear_since() -> None:
    made = torch.nn.Linear(19, 23)
    first = accelerated(torch.nn.Sequential(made), SampleSource(stored=[GEMM]))
    second = accelerated(torch.nn.Sequential(made), SampleSource(stored=[GEMM]))
    made.half()
    changed = "its weight is (23, 19) of torch.float16 on cpu now: accelerate it again"
    assert str(first).splitlines()[1] == f"0: replaced, but {changed}"
    assert len(first.replaced) == 1
    assert str(second).splitlines()[1] == f"0: left alone: it is a tirgemm.torch.Linear already, and {changed}"
    made.float()
    assert str(first).splitlines()[1] == "0: replaced"
    first.undo()
    assert str(second).splitlines()[1] == "0: left alone: it is a plain torch.nn.Linear again"
    third = accelerated(torch.nn.Sequential(made), SampleSource(stored=[GEMM]))
    torch.nn.utils.parametrizations.weight_norm(made)
    words = "it is a ParametrizedLinear now, which may compute something else"
    assert str(third).splitlines()[1] == f"0: left alone: {words}"
    assert third.replaced == ()


def quantised(made: Any) -> None:
    # Not by assignment: a parameter that is one stays a plain one.
    made._parameters["weight"] = made.weight.data.as_subclass(type("Quantised", (torch.nn.Parameter,), {}))


def without_bias(made: Any) -> None:
    made.bias = None


def turned(made: Any) -> None:
    made.weight.data = made.weight.data.t().contiguous().t()


def patched(made: Any) -> None:
    made.forward = lambda x: 2 * x


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (quantised, "one of its parameters is a Quantised now"),
        (without_bias, "it has no bias now: accelerate it again"),
        (turned, "its weight has strides (1, 23) now: accelerate it again"),
        (patched, "its forward was replaced"),
    ],
)
def test_a_report_says_why_kernels_compute_a_linear_no_more(change: Any, words: str) -> None:
    made = torch.nn.Linear(19, 23)
    report = accelerated(torch.nn.Sequential(made), SampleSource(stored=[GEMM]))
    assert str(report).splitlines()[1] == "0: replaced"
    change(made)
    assert str(report).splitlines()[1] == f"0: replaced, but {words}"


def calling_super(base: Any, decorated: Any) -> Any:
    """A class derived from ``base``, whose method has a cell with its class, as methods that call ``super()`` have."""

    def forward(self: Any, x: Any) -> Any:
        return 2 * super(__class__, self).forward(x)

    __class__: Any = type("Twice", (base,), {"forward": decorated(forward)})
    return __class__


@pytest.mark.parametrize("decorated", [lambda method: method, torch.no_grad()])
def test_a_class_whose_methods_call_super_computes_after_undo(decorated: Any) -> None:
    made = torch.nn.Linear(19, 23)
    report = accelerated(torch.nn.Sequential(made), SampleSource(stored=[GEMM]))
    Twice = made.__class__ = calling_super(type(made), decorated)
    x = torch.randn(5, 19)
    wanted = made(x)
    report.undo()
    assert isinstance(made, Twice)
    assert torch.allclose(made(x), wanted)
    assert str(report).splitlines()[1] == "0: left alone: it is a Twice now, which may compute something else"


def test_a_model_that_holds_its_report_is_copied_and_saved_with_a_record_of_it() -> None:
    from tirgemm.torch import restore

    made, x = torch.nn.Sequential(torch.nn.Linear(19, 23)), torch.randn(5, 19)
    made.report = report = accelerated(made, SampleSource(stored=[GEMM]))
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    copied = copy.deepcopy(made)
    for other in (copied, copy.deepcopy(copied), torch.load(file, weights_only=False)):
        kept = other.report
        assert str(kept) == str(report)
        assert (kept.linears, kept.replaced, kept.gemms) == (report.linears, report.replaced, report.gemms)
        assert (kept.failures, kept.dry_run, kept.dependent_launch) == ({}, False, False)
        for method, call in (("wait", kept.wait), ("race", lambda of=kept: of.race(lambda: None)), ("undo", kept.undo)):
            with pytest.raises(InvalidRequest, match=rf"{method}: this report was copied .*torch\.restore\(model\)"):
                call()
        assert torch.equal(other(x), made(x))
        assert restore(other) == {}
        assert type(other[0]) is torch.nn.Linear
    assert made.report is report
    report.undo()
    assert type(made[0]) is torch.nn.Linear


def test_a_method_that_began_before_another_threads_undo_goes_on() -> None:
    made, x = torch.nn.Linear(19, 23), torch.randn(5, 19)
    report = accelerated(made, SampleSource(stored=[GEMM]))
    state: dict[str, Any] = {}
    torch.nn.Linear(19, 23)._save_to_state_dict(state, "", keep_vars=False)
    apply, shown, load, forward = made._apply, made.extra_repr, made._load_from_state_dict, made.forward
    wanted = shown()
    report.undo()  # as a thread does between the lookup of a method and its first line
    assert apply(lambda tensor: tensor.clone()) is made
    assert shown() == wanted
    load(state, "", {}, True, [], [], [])
    assert torch.equal(made.weight, state["weight"])
    assert torch.allclose(forward(x), torch.nn.functional.linear(x, made.weight, made.bias), atol=1e-5)


def test_a_linear_that_was_parametrized_since_is_given_back_too() -> None:
    from torch.nn.utils import parametrizations, parametrize

    made, x = torch.nn.Linear(19, 23), torch.randn(5, 19)
    wanted = made(x)
    report = accelerated(made, SampleSource(stored=[GEMM]))
    parametrizations.weight_norm(made)
    other = accelerated(torch.nn.Linear(19, 23), SampleSource())
    report.undo()
    assert torch.allclose(made(x), wanted, atol=1e-5)
    assert type(made).__name__ == "ParametrizedLinear"
    assert parametrize.is_parametrized(made, "weight")
    parametrize.remove_parametrizations(made, "weight")
    assert type(made) is torch.nn.Linear
    assert made.__dict__.keys() == torch.nn.Linear(1, 1).__dict__.keys()
    assert len(other.replaced) == 1


def test_a_linear_whose_class_was_derived_twice_is_given_back_too() -> None:
    from torch.nn.utils import parametrizations

    made = torch.nn.Linear(19, 23)
    report = accelerated(made, SampleSource(stored=[GEMM]))
    parametrizations.weight_norm(made)
    made.__class__ = type("Sharded", (type(made),), {})
    report.undo()
    names = [cls.__name__ for cls in type(made).__mro__]
    assert names == ["Sharded", "ParametrizedLinear", "Linear", "Module", "object"]
    assert type(made).__mro__[2] is torch.nn.Linear


@pytest.mark.parametrize("wait", [True, 5])
def test_an_interrupted_accelerate_gives_the_model_back(wait: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, source, waited = torch.nn.Linear(19, 23), SampleSource(tuned_later=True), list[Any]()

    def interrupted(preparation: Any, _seconds: Any) -> bool:
        waited.append(preparation)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Preparation, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            accelerated(made, source, wait=wait)
    assert type(made) is torch.nn.Linear
    assert made.__dict__.keys() == torch.nn.Linear(1, 1).__dict__.keys()
    assert [preparation.cancelled.is_set() for preparation in waited] == [True]
    source.release.set()
    assert waited[0].wait(PATIENCE_S)
    assert len(accelerated(made, source).replaced) == 1


@pytest.mark.parametrize("error", [OSError("no threads"), KeyboardInterrupt()])
def test_a_source_that_cannot_begin_leaves_the_model_as_it_was(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, source = torch.nn.Linear(19, 23), SampleSource()

    def prepare(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(source, "prepare", prepare)
        with pytest.raises(type(error)):
            accelerated(made, source)
    assert type(made) is torch.nn.Linear
    assert len(accelerated(made, source).replaced) == 1


def test_kernels_that_are_being_made_keep_no_model_alive_and_serve_the_next(table: Any) -> None:
    from tirgemm.detect import device

    made, source = torch.nn.Linear(19, 23), SampleSource(tuned_later=True, only_tuned=True)
    report = accelerated(made, source, wait=False)
    preparation, weight = report.preparations[0], weakref.ref(made.weight)
    del made, report
    gc.collect()
    assert weight() is None
    source.release.set()
    assert preparation.wait(PATIENCE_S)
    assert table.find(GEMM, device("cpu")).manifest.role == "tuned"


def restorable(**more: Any) -> tuple[Any, Any]:
    """A model whose linear kernels compute, and its report."""
    made = torch.nn.Sequential(torch.nn.Linear(19, 23), torch.nn.ReLU()).requires_grad_(False)
    gemm = GEMM.with_(invariant=bool(more.get("invariant")))
    return made, accelerated(made, SampleSource(stored=[gemm]), **more)


def loaded(made: Any) -> Any:
    held = io.BytesIO()
    torch.save(made, held)
    held.seek(0)
    return torch.load(held, weights_only=False)


@pytest.mark.parametrize("more", [{}, {"prepack": True}, {"invariant": True}], ids=str)
@pytest.mark.parametrize("again", [copy.deepcopy, loaded])
def test_a_copied_or_loaded_model_becomes_plain(again: Any, more: dict[str, Any]) -> None:
    from tirgemm.torch import Linear, restore

    made, _ = restorable(**more)
    other, x = again(made), torch.randn(5, 19)
    layer, parameters, wanted = other[0], [*other.parameters()], other(x)
    assert type(layer) is Linear
    assert restore(other) == {}
    assert other[0] is layer
    assert type(layer) is torch.nn.Linear
    assert layer.__dict__.keys() == torch.nn.Linear(1, 1).__dict__.keys()
    assert all(one is two for one, two in zip(other.parameters(), parameters, strict=True))
    assert torch.allclose(other(x), wanted, atol=1e-5)
    held = io.BytesIO()
    torch.save(other, held)
    assert b"tirgemm" not in held.getvalue(), "it is loaded where tirgemm is not"
    assert type(made[0]) is Linear, "the model itself is as it was"


def test_a_model_of_a_report_may_be_restored_and_undone() -> None:
    from tirgemm.torch import restore

    made, report = restorable()
    assert restore(made) == {}
    assert "it is a plain torch.nn.Linear again" in str(report)
    report.undo()
    assert type(made[0]) is torch.nn.Linear
    assert restore(made) == {}


def test_what_would_lose_something_is_left_and_told() -> None:
    from tirgemm.torch import Linear, restore

    class Doubled(Linear):
        def forward(self, input: Any) -> Any:
            return 2 * super().forward(input)

    made = torch.nn.Sequential(
        Linear(19, 23, act="relu"), torch.nn.ModuleDict({"inner": Doubled(23, 19)}), Linear(3, 5)
    )
    kinds, x = [type(made[0]), type(made[1]["inner"])], torch.randn(5, 23)
    wanted = made[1]["inner"](x)
    assert restore(made) == {
        "0": "its activation relu would be lost",
        "1.inner": "it is a Doubled, which may compute something else",
    }
    assert [type(made[0]), type(made[1]["inner"])] == kinds
    assert torch.equal(made[1]["inner"](x), wanted)
    assert type(made[2]) is torch.nn.Linear
    assert restore(Linear(3, 5, act="silu")) == {"(the model)": "its activation silu would be lost"}


def test_a_parametrized_linear_keeps_its_parametrization() -> None:
    from torch.nn.utils import parametrizations, parametrize

    from tirgemm.torch import restore

    made, _ = restorable()
    other, x = copy.deepcopy(made), torch.randn(5, 19)
    parametrizations.weight_norm(other[0])
    wanted = other(x)
    assert restore(other) == {}
    assert torch.allclose(other(x), wanted, atol=1e-5)
    parametrize.remove_parametrizations(other[0], "weight")
    assert type(other[0]) is torch.nn.Linear


def test_what_is_no_module_is_refused() -> None:
    from tirgemm.torch import restore

    with pytest.raises(InvalidRequest, match=r"model is 5; give a torch\.nn\.Module"):
        restore(cast("Any", 5))
