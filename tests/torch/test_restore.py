"""``restore``: models that were accelerated, and copied or loaded since, become plain PyTorch again."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.helpers.sample_source import SampleSource
from tests.torch.restored_table import restored_table
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

GEMM = Gemm(5, 23, 19, "f32", "nt", bias=True)


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    with restored_table(), torch.no_grad():
        yield


def accelerated(**more: Any) -> tuple[Any, Any]:
    """A model, and its report."""
    from tirgemm.torch import accelerate

    made = torch.nn.Sequential(torch.nn.Linear(19, 23), torch.nn.ReLU())
    invariant = bool(more.get("invariant"))
    return made, accelerate(made, rows=5, source=SampleSource(stored=[GEMM.with_(invariant=invariant)]), **more)


def loaded(made: Any) -> Any:
    held = io.BytesIO()
    torch.save(made, held)
    held.seek(0)
    return torch.load(held, weights_only=False)


@pytest.mark.parametrize("more", [{}, {"prepack": True}, {"invariant": True}], ids=str)
@pytest.mark.parametrize("again", [copy.deepcopy, loaded])
def test_a_copied_or_loaded_model_becomes_plain(again: Any, more: dict[str, Any]) -> None:
    from tirgemm.torch import Linear, restore

    made, _ = accelerated(**more)
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

    made, report = accelerated()
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

    made, _ = accelerated()
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
