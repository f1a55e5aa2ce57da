"""Layers for dependent launches: computed by kernels that were built for them, and those by no other layer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.helpers.sample_source import SampleSource
from tests.observed_calls import observed
from tests.torch.restored_table import restored_table
from tests.torch.watched_kernel import watch
from tirgemm.errors import InvalidRequest, MissingExtra
from tirgemm.gemm import Gemm, Range

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

GEMM = Gemm(Range(1, 64), 23, 19, "f32", "nt", bias=True)


@pytest.fixture(autouse=True)
def table() -> Iterator[Any]:
    """The table, which is as it was once the test is over, and so is that for dependent launches."""
    with restored_table() as kept:
        yield kept


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A CPU counts as a device that has dependent launches, and sources are taken for such of kernels that were
    rebuilt; those are returned."""
    import tirgemm
    from tirgemm.torch import conversion

    wrapped: list[Any] = []
    monkeypatch.setattr(conversion, "dependent_launch_refusal", lambda _device: "")
    monkeypatch.setattr(tirgemm, "DependentKernels", observed(lambda inner: inner, wrapped.append), raising=False)
    return wrapped


def test_a_call_is_served_by_a_kernel_of_its_own_table(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import Linear, linear
    from tirgemm.torch.kernel_table import DEPENDENT_TABLE
    from tirgemm.torch.linear_module import convert_to_kernel_linear

    ran: list[str] = []

    def watched(name: str) -> Any:
        return watch(SampleSource().kernel(GEMM, "tuned"), lambda _: ran.append(name), monkeypatch)

    plain, dependent = watched("plain"), watched("dependent")
    table.add(plain)
    layer, asking = torch.nn.Linear(19, 23), torch.nn.Linear(19, 23)
    convert_to_kernel_linear(layer, prepack=False)
    convert_to_kernel_linear(asking, prepack=True, dependent_launch=True)
    x = torch.randn(5, 19)
    arguments = x, layer.weight, layer.bias
    wanted = torch.nn.functional.linear(*arguments)
    for asked in (False, True):
        assert torch.allclose(linear(*arguments, dependent_launch=asked), wanted, atol=1e-5)
    assert ran == ["plain"], "PyTorch computes a call for dependent launches that has no kernel"
    DEPENDENT_TABLE.add(dependent)
    ran.clear()
    for asked in (False, True, False, True, True):
        assert torch.allclose(linear(*arguments, dependent_launch=asked), wanted, atol=1e-5)
        assert torch.allclose(
            torch.ops.tirgemm.linear(*arguments, "none", False, dependent_launch=asked), wanted, atol=1e-5
        )
    expected = ["dependent" if asked else "plain" for asked in (False, True, False, True, True) for _ in range(2)]
    assert ran == expected
    ran.clear()
    for module in (layer, asking):
        module(x)
    assert ran == ["plain", "dependent"]
    assert isinstance(asking, Linear)
    assert (layer.dependent_launch, asking.dependent_launch) == (False, True)
    DEPENDENT_TABLE.remove(dependent)
    ran.clear()
    asking(x)
    assert ran == []


def test_invariant_calls_for_dependent_launches_are_kept_apart_too(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import linear
    from tirgemm.torch.kernel_table import table_of

    ran: list[tuple[bool, bool]] = []
    kinds = [(invariant, dependent) for invariant in (False, True) for dependent in (False, True)]

    def note(kind: tuple[bool, bool], _: Any) -> None:
        ran.append(kind)

    for kind in kinds:
        kernel = SampleSource().kernel(GEMM.with_(invariant=kind[0]), "tuned")
        table_of(kind[1]).add(watch(kernel, partial(note, kind), monkeypatch))
    x, layer = torch.randn(5, 19), torch.nn.Linear(19, 23)
    for invariant, dependent in kinds * 2:
        linear(x, layer.weight, layer.bias, "none", invariant, dependent)
    assert ran == kinds * 2
    assert table is table_of(False)


def test_accelerate_uses_rebuilt_kernels_and_says_so(table: Any, anywhere: list[Any]) -> None:
    from tirgemm.device import Device
    from tirgemm.torch import accelerate
    from tirgemm.torch.kernel_table import DEPENDENT_TABLE, device_of

    source, layer, other = SampleSource(stored=[GEMM]), torch.nn.Linear(19, 23), torch.nn.Linear(19, 23)
    report = accelerate(layer, rows=GEMM.m, source=source, dependent_launch=True, dry_run=True)
    assert str(report).startswith("1 of 1 linears would be replaced, with dependent launches; 1 problems\n")
    assert type(layer) is torch.nn.Linear
    report = accelerate(layer, rows=GEMM.m, source=source, dependent_launch=True)
    assert str(report) == (
        "1 of 1 linears replaced, with dependent launches; 1 problems; not raced\n"
        f"(the model): replaced\n    {GEMM}: tuned"
    )
    assert report.dependent_launch
    assert anywhere == [source, source]
    assert repr(layer) == "Linear(in_features=19, out_features=23, bias=True, dependent_launch=True)"
    place: Device = device_of(torch.device("cpu"))
    assert DEPENDENT_TABLE.find(GEMM, place) is source.made[-1]
    assert table.find(GEMM, place) is None
    plain = accelerate(other, rows=GEMM.m, source=SampleSource(), policy="tuned")
    assert not plain.replaced, "a model that did not ask has no kernel"
    report.undo()
    assert layer.__dict__.keys() == torch.nn.Linear(1, 1).__dict__.keys()


def test_kernels_that_are_made_later_come_into_the_table_of_dependent_launches(
    table: Any, anywhere: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import accelerate, acceleration

    source, layer = SampleSource(), torch.nn.Linear(19, 23)
    monkeypatch.setattr(acceleration, "lost_rows", lambda _kernel, _modules: {Range(1, 64): 1.25})
    report = accelerate(
        layer, rows=GEMM.m, source=source, policy="default", dependent_launch=True, wait=True, measured=True
    )
    assert (source.asked, anywhere) == ([GEMM], [source])
    assert report.linears[0].problems == ((GEMM, "not faster than PyTorch, 1.250 of its time for 1..64 rows"),)
    assert type(layer) is torch.nn.Linear, "given back, as it was slower"
    assert table.excluded_rows(GEMM, source.made[0].device) == {}


def test_a_cpu_is_refused_by_name_with_the_limit() -> None:
    from tirgemm.torch import accelerate

    layer = torch.nn.Linear(19, 23)
    words = "dependent_launch=True: programmatic dependent launch needs a GPU of sm_90 or newer; cpu is a CPU"
    with pytest.raises(InvalidRequest, match=words):
        accelerate(layer, source=SampleSource(stored=[GEMM]), dependent_launch=True)
    assert type(layer) is torch.nn.Linear


def test_without_the_tuner_nothing_can_be_rebuilt(anywhere: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import tirgemm
    from tirgemm.torch import accelerate

    def absent(*_arguments: Any) -> None:
        raise MissingExtra("tirgemm.LocalKernels needs the extra tune")

    monkeypatch.setattr(tirgemm, "LocalKernels", absent, raising=False)
    with pytest.raises(MissingExtra, match="LocalKernels needs the extra tune"):
        accelerate(torch.nn.Linear(19, 23), dependent_launch=True)
    assert anywhere == []


def test_a_kernel_for_dependent_launches_comes_into_no_other_table(table: Any) -> None:
    from tests.helpers.artifact_samples import TRUST
    from tests.tuning_db.dependent_bench import HOPPER, certified
    from tirgemm.artifact import load
    from tirgemm.torch import register, registered
    from tirgemm.torch.kernel_table import DEPENDENT_TABLE

    gemm = Gemm.parse("16x64x128:f16:nt")
    kernel = load(certified(gemm, "exact", "chain"), trust=TRUST, check_device=False)
    with pytest.raises(InvalidRequest, match=f"the kernel of {gemm} is for dependent launches"):
        table.add(kernel)
    assert registered(register(kernel)) is kernel
    assert table.find(gemm, HOPPER) is None
    assert DEPENDENT_TABLE.find(gemm, HOPPER) is kernel


def test_a_source_of_kernels_that_a_model_did_not_ask_for_serves_none_of_them(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.artifact.manifest import Manifest
    from tirgemm.torch import accelerate

    monkeypatch.setattr(Manifest, "dependent_launch", property(lambda _: True))
    source, layer = SampleSource(stored=[GEMM]), torch.nn.Linear(19, 23)
    report = accelerate(layer, rows=GEMM.m, source=source)
    assert not report.replaced
    assert "is for dependent launches: calls with dependent_launch=True alone use it" in str(report)
    assert table.find(GEMM, source.made[0].device) is None
