"""Weights packed once on a CPU in the graphs of torch.compile and torch.export."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.packing_kernel import packing_kernel, packing_set
from tests.torch.restored_table import restored_table
from tests.torch.watched_kernel import noted_packs

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

N, K = 27, 21
COPY = 4 * N * K


@pytest.fixture(autouse=True)
def kernel() -> Iterator[Any]:
    from tirgemm.torch import register

    with restored_table():
        made = packing_kernel(f"1..8x{N}x{K}:f32:nt")
        register(made)
        yield made
    torch.compiler.reset()


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> list[int]:
    """The addresses that were packed."""
    return noted_packs(kernel, monkeypatch)


def layer(n: int = N, **more: Any) -> Any:
    from tirgemm.torch import Linear

    made = Linear(K, n, bias=False, prepack=True, **more)
    made.weight.copy_(torch.randint(-3, 4, (n, K)))
    return made


def rows(m: int = 4) -> Any:
    return torch.randint(-3, 4, (m, K)).float()


def wanted(made: Any, x: Any) -> Any:
    return torch.nn.functional.linear(x, made.weight)


def with_gradient(weight: Any) -> Any:
    weight.grad = torch.ones_like(weight)
    return weight


def compiled(module: Any, backend: str = "inductor", **more: Any) -> Any:
    return torch.compile(module, fullgraph=True, backend=backend, **more)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_compiled_layer_packs_its_weight_once(backend: str, mode: Any, packs: list[int]) -> None:
    made = layer()
    forward = compiled(made, backend)
    with mode():
        for _ in range(5):
            x = rows()
            assert torch.equal(forward(x), wanted(made, x))
    assert packs == [made.weight.data_ptr()]
    assert made.packed_bytes == COPY
    assert torch.equal(made(x), wanted(made, x))
    assert len(packs) == 1, "an eager call has a copy of its own"


def test_one_graph_packs_for_every_number_of_rows() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    from tirgemm.torch import register

    register(packing_set(f"1..64x{N + 2}x{K}:f32:nt", (2, 8, 64)))
    made, counter = layer(N + 2), CompileCounterWithBackend("inductor")
    forward = compiled(made, counter, dynamic=True)
    for m, copies in ((5, 0), (7, 1), (2, 2), (64, 3), (33, 3), (65, 3), (8, 3)):
        x = rows(m)
        assert torch.equal(forward(x), wanted(made, x))
        assert made.packed_bytes == copies * 4 * (N + 2) * K
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.weight.mul_(2),
        lambda made: made.weight[3].zero_(),
        lambda made: made.load_state_dict({"weight": torch.ones(N, K)}),
        lambda made: setattr(made, "weight", torch.nn.Parameter(torch.ones(N, K))),
        lambda made: setattr(made.weight, "data", torch.ones(N, K)),
        lambda made: made.double().float(),
        lambda made: (made.weight.data.zero_(), made.repack()),
        lambda made: torch.compile(lambda: made.weight.mul_(2), fullgraph=True)(),
        lambda made: torch.optim.AdamW([with_gradient(made.weight)], lr=0.5, fused=True).step(),
    ],
    ids=[
        "in place",
        "a row",
        "load_state_dict",
        "replaced",
        "data replaced",
        "to and back",
        "repack",
        "compiled",
        "fused optimizer",
    ],
)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_changed_weight_is_packed_again_by_a_graph(change: Any, backend: str, packs: list[int]) -> None:
    made, x = layer(), rows()
    forward = compiled(made, backend)
    for _ in range(2):
        forward(x)
    change(made)
    for _ in range(3):
        assert torch.allclose(forward(x), wanted(made, x), atol=1e-4)
    assert len(packs) == 2
    assert made.packed_bytes == COPY, "the old copy stays"


def updating(made: Any, again: bool) -> Any:
    """A function that changes the weight of a layer within its own graph, after it was used twice, and uses it
    again."""

    def forward(x: Any) -> Any:
        y = made(x) + made(x[:2]).sum()
        made.weight.mul_(2)
        return y + made(x) if again else y

    return forward


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_weight_that_its_own_graph_changes_is_never_stale(backend: str, again: bool, packs: list[int]) -> None:
    made, x = layer(), rows()
    unpacked = copy.deepcopy(made)
    unpacked._prepack = False
    plain, update = updating(unpacked, again), compiled(updating(made, again), backend)
    other = compiled(made, backend, dynamic=True)
    for _ in range(3):
        assert torch.equal(update(x), plain(x))
        assert torch.equal(other(x), wanted(unpacked, x))
        assert torch.equal(made(x), wanted(unpacked, x))
    assert len(packs) >= 3, "what is not packed tests nothing"


def test_a_graph_packs_no_weight_that_it_computes_itself(packs: list[int]) -> None:
    weight, x = torch.nn.Parameter(torch.randint(-3, 4, (N, K)).float()), rows()

    def product(x: Any, weight: Any) -> Any:
        return torch.ops.tirgemm.linear(x, weight, None, "none", False, False, True)

    def twice(x: Any) -> Any:
        doubled = weight * 2
        y = product(x, doubled)
        return y + product(x, doubled + 1)

    forward = compiled(twice)
    for _ in range(3):
        assert torch.equal(forward(x), x @ (4 * weight + 1).t())
    assert packs == []


def test_layers_with_one_weight_share_its_copy(packs: list[int]) -> None:
    made, tied = layer(), layer()
    tied.weight = made.weight
    model, x = torch.nn.ModuleList([made, tied]), rows()
    forward = compiled(lambda x: model[0](x) + model[1](x))
    for _ in range(3):
        assert torch.equal(forward(x), 2 * wanted(made, x))
    assert len(packs) == 1
    assert (made.packed_bytes, tied.packed_bytes) == (COPY, COPY)


@pytest.mark.parametrize("calls", [1, 3])
def test_a_packed_weight_goes_with_its_layer(calls: int) -> None:
    from tirgemm.torch.packed_weight import PACKED_WEIGHTS

    torch.compiler.reset()
    gc.collect()  # weights of other tests, which go at any time
    before = len(PACKED_WEIGHTS._known)
    made, x = layer(), rows()
    alive = weakref.ref(made.weight)
    forward = compiled(made)
    for _ in range(calls):
        forward(x)
    assert len(PACKED_WEIGHTS._known) == before + 1
    del made, forward
    torch.compiler.reset()
    gc.collect()
    assert alive() is None
    assert len(PACKED_WEIGHTS._known) == before


def test_a_copied_layer_has_a_copy_of_its_own(packs: list[int]) -> None:
    made, x = layer(), rows()
    for _ in range(2):
        compiled(made)(x)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        other.weight.add_(1)
        assert other.packed_bytes == 0
        forward = compiled(other)
        for _ in range(3):
            assert torch.equal(forward(x), wanted(other, x))
        assert other.packed_bytes == COPY
    assert torch.equal(compiled(made)(x), wanted(made, x))
    assert len(packs) == 3


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_layer_packs_its_weight_once(strict: bool, packs: list[int]) -> None:
    made, x = layer(), rows()
    rows_of_x = torch.export.Dim("rows", max=64)
    exported = torch.export.export(made, (x,), dynamic_shapes=({0: rows_of_x},), strict=strict)
    assert packs == []
    assert exported.state_dict.keys() == {"weight"}
    module = exported.module()
    for m in (4, 1, 8, 9):
        x = rows(m)
        assert torch.equal(module(x), wanted(made, x))
    assert len(packs) == 1
    module.weight.mul_(2)
    assert torch.equal(module(x[:4]), wanted(module, x[:4]))
    assert len(packs) == 2
    forward = compiled(module)
    assert torch.equal(forward(x[:4]), wanted(module, x[:4]))
    assert len(packs) == 2


def test_a_fresh_process_packs_the_weight_of_an_exported_program(tmp_path: Path) -> None:
    made, x = layer(), rows()
    path = tmp_path / "program.pt2"
    exported = torch.export.export(made, (x,))
    made(x)
    torch.export.save(exported, path)
    torch.save((x, wanted(made, x)), tmp_path / "tensors.pt")
    code = f"""
        import torch, tirgemm.torch
        from tests.helpers.packing_kernel import packing_kernel
        from tirgemm.torch.packed_weight import PACKED_WEIGHTS

        x, right = torch.load({str(tmp_path / "tensors.pt")!r})
        module = torch.export.load({str(path)!r}).module()
        with torch.no_grad():
            assert torch.equal(module(x), right)
            assert PACKED_WEIGHTS.nbytes(module.weight) == 0
            tirgemm.torch.register(packing_kernel("1..8x{N}x{K}:f32:nt"))
            for _ in range(2):
                assert torch.equal(module(x), right)
            print(PACKED_WEIGHTS.nbytes(module.weight))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.strip() == str(COPY), done.stderr


def test_a_program_of_an_earlier_version_runs_as_before(packs: list[int]) -> None:
    weight, x = torch.nn.Parameter(torch.ones(N, K)), rows()
    for given in ((), (False,), (False, False)):
        assert torch.equal(torch.ops.tirgemm.linear(x, weight, None, "none", *given), x @ weight.t())
    assert packs == []


def test_the_operator_passes_opcheck_when_it_packs(packs: list[int]) -> None:
    weight = torch.nn.Parameter(torch.randn(N, K), requires_grad=False)
    for x in (torch.randn(4, K), torch.randn(2, 3, K)):
        given = (x, weight, None, "none", False, False, True)
        assert torch.ops.tirgemm.linear(*given).shape == (*x.shape[:-1], N)
        torch.library.opcheck(torch.ops.tirgemm.linear.default, given)
    with torch.enable_grad():
        leaf = torch.nn.Parameter(torch.randn(N, K))
        torch.library.opcheck(torch.ops.tirgemm.linear.default, (x, leaf, None, "relu", False, False, True))
    assert packs == [weight.data_ptr()]


def test_a_program_in_training_forgets_what_is_packed(packs: list[int]) -> None:
    made, x = layer(), rows()
    module = torch.export.export(made, (x,)).module()
    module(x)
    with torch.enable_grad():
        module(x).sum().backward()
    assert torch.equal(module.weight.grad, x.sum(0).expand(N, K))
    module.weight.data.zero_()
    assert torch.equal(module(x), torch.zeros(4, N))
    assert len(packs) == 2


def test_gradients_of_a_compiled_layer_are_pytorchs(packs: list[int]) -> None:
    made, x = layer(), rows()
    forward: Callable[[Any], Any] = compiled(made, "aot_eager")
    with torch.enable_grad():
        forward(x).sum().backward()
    assert torch.equal(made.weight.grad, x.sum(0).expand(N, K))
    assert packs == []


def test_a_saved_model_has_no_packed_weight() -> None:
    made, x = layer(), rows()
    empty, full = io.BytesIO(), io.BytesIO()
    torch.save(made, empty)
    made(x)
    torch.save(made, full)
    assert made.packed_bytes == COPY
    assert len(full.getvalue()) == len(empty.getvalue())
    assert made.state_dict().keys() == {"weight"}
