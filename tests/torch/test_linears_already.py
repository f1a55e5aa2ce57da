"""``tirgemm.torch.Linear``s that are in a model before it is accelerated: they get kernels, and stay as they are."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.sample_source import SampleSource
from tests.torch.restored_table import restored_table
from tests.torch.watched_kernel import watch
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm, Range

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
ALREADY = "it is a tirgemm.torch.Linear already"
N, K = 23, 19
GEMM = Gemm(5, N, K, "f32", "nt", bias=True)


@pytest.fixture(autouse=True)
def table() -> Iterator[Any]:
    """A table that is as it was once the test is over."""
    with restored_table() as kept:
        yield kept


def accelerated(made: Any, source: Any, rows: Any = 5, **more: Any) -> Any:
    from tirgemm.torch import accelerate

    return accelerate(made, **{"rows": rows, "source": source, "policy": "default", "wait": True} | more)


def own(**how: Any) -> Any:
    from tirgemm.torch import Linear

    return torch.nn.Sequential(Linear(K, N, **how))


# What a process that loads a saved model prints: the report, and how often a kernel ran.
LOADING = """
import sys
import pytest, torch
from tests.helpers.sample_source import SampleSource
from tests.torch.watched_kernel import watch
from tirgemm.torch import accelerate
from tirgemm.torch.kernel_table import TABLE, device_of

made, x, wanted = torch.load(sys.argv[1], weights_only=False)
with torch.no_grad(), pytest.MonkeyPatch.context() as patched:
    report = accelerate(made, rows=5, source=SampleSource(), policy="default", wait=True)
    ran = []
    kernel = TABLE.find(report.gemms[0], device_of(torch.device("cpu")))
    watch(kernel, lambda _: ran.append(1), patched)
    for _ in range(2):
        assert torch.allclose(made(x), wanted, atol=1e-5)
print(report)
print(len(ran))
"""


def test_a_model_that_was_saved_gets_kernels_in_another_process(tmp_path: Path) -> None:
    made, x = torch.nn.Sequential(torch.nn.Linear(K, N)), torch.randn(5, K)
    wanted = made(x)
    assert accelerated(made, SampleSource()).replaced
    torch.save((made, x, wanted), tmp_path / "model.pt")
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(tmp_path / "model.pt")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout == (
        "0 of 1 linears replaced, 1 were already; 1 problems; not raced\n"
        f"0: left alone: {ALREADY}\n    {GEMM}: default\n2\n"
    )


def test_a_linear_of_the_users_gets_kernels_of_its_activation_and_stays(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.detect import device
    from tirgemm.torch import Linear

    made, source, ran = own(act="gelu"), SampleSource(), list[int]()
    gelu = GEMM.with_(act="gelu")
    report = accelerated(made, source)
    assert source.asked == [gelu]
    assert report.linears[0].problems == ((gelu, "default"),)
    watch(table.find(gelu, device("cpu")), lambda x: ran.append(len(x)), monkeypatch)
    made(torch.randn(5, K))
    made(torch.randn(6, K))
    assert ran == [5]
    report.undo()
    assert type(made[0]) is Linear
    assert made[0].act == "gelu"
    assert report.linears[0].reason == ALREADY


def test_a_model_is_accelerated_again_for_other_rows_and_as_a_copy() -> None:
    made, source = torch.nn.Sequential(torch.nn.Linear(K, N)), SampleSource()
    first = accelerated(made, source)
    second = accelerated(made, source, [5, 7])
    assert source.asked == [GEMM, GEMM.with_(m=5), GEMM.with_(m=7)]
    assert [kernel for _, kernel in second.linears[0].problems] == ["default"] * 2
    first.undo()
    assert type(made[0]) is torch.nn.Linear
    other = copy.deepcopy(own())
    assert str(accelerated(other, None, dry_run=True)).startswith("0 of 1 linears would be replaced, 1 were already;")


def test_a_linear_in_training_is_asked_nothing_for() -> None:
    source = SampleSource()
    with torch.enable_grad():
        report = accelerated(own(), source)
    assert "its parameters require grad and gradients are recorded" in report.linears[0].reason
    assert source.asked == []


def test_the_linears_own_settings_say_which_kernels_they_take() -> None:
    source = SampleSource()
    report = accelerated(own(invariant=True), source)
    assert source.asked == [GEMM.with_(invariant=True)]
    assert report.linears[0].reason == ALREADY
    report = accelerated(own(), source, invariant=True)
    assert report.linears[0].reason == f"{ALREADY}, without invariant=True"
    dependent = own()
    dependent[0]._dependent_launch = True
    report = accelerated(dependent, source)
    assert report.linears[0].reason == f"{ALREADY}, with dependent_launch=True"
    assert report.gemms == ()
    assert len(source.asked) == 1


def test_a_race_leaves_pytorch_the_rows_but_not_the_linear(monkeypatch: pytest.MonkeyPatch, table: Any) -> None:
    from tirgemm.detect import device
    from tirgemm.torch import Linear, acceleration

    raced: list[Any] = []

    def lost(_kernel: Any, modules: Any) -> dict[Range, float]:
        raced.extend(modules)
        return {Range(5, 5): 1.25}

    monkeypatch.setattr(acceleration, "lost_rows", lost)
    made = own(act="relu")
    report = accelerated(made, SampleSource(), measured=True)
    relu = GEMM.with_(act="relu")
    assert raced == [made[0]]
    assert table.find(relu, device("cpu")) is None
    assert report.linears[0].problems == ((relu, "not faster than PyTorch, 1.250 of its time for 5 rows"),)
    assert type(made[0]) is Linear
    x = torch.randn(5, K)
    assert torch.equal(made(x), torch.nn.functional.linear(x, made[0].weight, made[0].bias).relu())
    assert accelerated(made, SampleSource(), dry_run=True, measured=True).wait()
    report.undo()
    assert report.wait()
    assert len(raced) == 1


def test_a_race_of_the_model_does_not_take_a_linears_activation_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.torch.work_clock import WorkClock
    from tirgemm.torch import Linear, linear_race, model_race
    from tirgemm.torch.alternation import Turns

    turns = Turns(2, 1e-5, WorkClock())
    monkeypatch.setattr(model_race, "TURNS", turns)
    made, seen = own(act="silu"), set[Any]()
    report = accelerated(made, SampleSource())

    def call() -> None:
        seen.add(type(made[0]))
        made(torch.ones(5, K))

    report.race(call)
    assert seen == {Linear}

    computed: list[str] = []
    monkeypatch.setattr(linear_race, "activation", lambda act: lambda _: computed.append(act))
    monkeypatch.setattr(linear_race, "TURNS", turns)
    linear_race._ratio(5, [made[0]])
    assert set(computed) == {"silu"}, "PyTorch's product is raced with the activation"
    computed.clear()
    linear_race._ratio(5, [own()[0]])
    assert computed == []


def test_a_linear_that_lacks_the_prepack_that_is_asked_for_says_so() -> None:
    plain, packed = (accelerated(own(**how), SampleSource(), prepack=True) for how in ({}, {"prepack": True}))
    assert plain.linears[0].reason == f"{ALREADY}, without prepack=True"
    assert packed.linears[0].reason == ALREADY


def test_what_shares_no_parameters_of_a_plain_linear_is_refused() -> None:
    from tirgemm.torch import Linear

    def forward(self: Any, x: Any) -> Any:
        return 2 * torch.nn.Linear.forward(self, x)

    Twice: Any = type("Twice", (torch.nn.Linear,), {"forward": forward})
    parametrized = torch.nn.Linear(K, N)
    torch.nn.utils.parametrize.register_parametrization(parametrized, "weight", torch.nn.Identity())
    plain, replaced = torch.nn.Linear(K, N), torch.nn.Linear(K, N)
    replaced.forward = lambda x: 2 * torch.nn.functional.linear(x, replaced.weight)
    refused = {
        "Linear .* its forward was replaced": replaced,
        "None": None,
        "'layer'": "layer",
        "Linear'": torch.nn.Linear,
        "Conv1d Conv1d": torch.nn.Conv1d(K, N, 1),
        "ParametrizedLinear .* no parameter of its own": parametrized,
        "LazyLinear .* first call": torch.nn.LazyLinear(N),
        "Twice .* computes something else": Twice(K, N),
    }
    for words, given in refused.items():
        with pytest.raises(InvalidRequest, match=f"(?s)^module is .*{words}.*give a (plain )?torch.nn.Linear$"):
            Linear.of(given)
    for register in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"):
        hooked = torch.nn.Linear(K, N)
        getattr(hooked, f"register_{register}")(lambda *_: None)
        with pytest.raises(InvalidRequest, match="it has hooks, which another module would not call"):
            Linear.of(hooked)
    derived = type("Derived", (torch.nn.Linear,), {})(K, N)
    for given in (plain, derived, Linear(K, N, act="relu"), torch.nn.Linear(K, N, bias=False)):
        assert Linear.of(given).weight is given.weight
