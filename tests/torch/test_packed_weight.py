"""Weights packed once on a CPU: kept while they are the same, packed again when they are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.artifact_samples import kernel
from tests.helpers.packing_kernel import packing_kernel, packing_set
from tests.torch.watched_kernel import noted_packs
from tirgemm.launch import Workspace

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

N, K = 23, 19


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


@pytest.fixture(scope="module", autouse=True)
def loaded() -> Iterator[Any]:
    from tirgemm.torch import register
    from tirgemm.torch.kernel_table import TABLE

    kernel = packing_kernel(f"1..8x{N}x{K}:f32:nt")
    register(kernel)
    yield kernel
    TABLE.remove(kernel)


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch, loaded: Any) -> list[int]:
    """The addresses that were packed."""
    return noted_packs(loaded, monkeypatch)


def layer(**more: Any) -> Any:
    from tirgemm.torch import Linear

    made = Linear(K, N, bias=False, prepack=True, **more)
    made.weight.copy_(torch.randint(-3, 4, (N, K)))
    return made


def wanted(made: Any, x: Any) -> Any:
    return torch.nn.functional.linear(x, made.weight, made.bias)


def test_a_weight_is_packed_once(packs: list[int]) -> None:
    made, x = layer(), torch.randint(-3, 4, (4, K)).float()
    for rows in (x, x[:1], x, x.view(2, 2, K)):
        assert torch.equal(made(rows), wanted(made, rows))
    assert packs == [made.weight.data_ptr()]
    assert made.packed_bytes == 4 * N * K
    assert made.state_dict().keys() == {"weight"}


def test_a_kernel_set_packs_once_for_each_member_that_runs() -> None:
    from tirgemm.torch import Linear, register
    from tirgemm.torch.kernel_table import TABLE

    kernel = packing_set(f"1..64x{N + 2}x{K}:f32:nt", (2, 8, 64), plain=1)
    register(kernel)
    made = Linear(K, N + 2, bias=False, prepack=True)
    made.weight.copy_(torch.randint(-3, 4, made.weight.shape))
    for m, copies in ((1, 1), (2, 1), (5, 1), (64, 2), (9, 2), (1, 2)):
        x = torch.randint(-3, 4, (m, K)).float()
        assert torch.equal(made(x), wanted(made, x))
        assert made.packed_bytes == copies * 4 * (N + 2) * K
    made.weight.mul_(2)
    assert torch.equal(made(x), wanted(made, x))
    assert made.packed_bytes == 4 * (N + 2) * K, "those of the old weight are gone"
    TABLE.remove(kernel)


def _written_by_a_kernel(made: Any) -> None:
    """A few elements, none of which the samples are."""
    writes = kernel(f"{N}x{K}x2:f32:nn")
    a, b = torch.zeros(N, 2), torch.zeros(2, K)
    writes(a, b, out=torch.empty(N, K))  # the launcher takes later calls apart
    made.weight.zero_()
    made(torch.ones(1, K))
    a[2, 0] = b[0, 1] = 1
    writes(a, b, out=made.weight)


def test_a_weight_that_a_kernel_writes_is_packed_again() -> None:
    made, x = layer(), torch.randint(1, 4, (4, K)).float()
    _written_by_a_kernel(made)
    assert made.weight.count_nonzero() == 1
    assert torch.equal(made(x), wanted(made, x))


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.weight.mul_(2),
        lambda made: made.weight[3].zero_(),
        lambda made: made.load_state_dict({"weight": torch.ones(N, K)}),
        lambda made: setattr(made, "weight", torch.nn.Parameter(torch.ones(N, K))),
        lambda made: setattr(made.weight, "data", torch.ones(N, K)),
        lambda made: made.double().float(),
        lambda made: torch.optim.SGD([_with_gradient(made.weight)], lr=0.5).step(),
    ],
    ids=["in place", "a row", "load_state_dict", "replaced", "data replaced", "to and back", "optimizer"],
)
def test_a_changed_weight_is_packed_again(change: Any, packs: list[int]) -> None:
    made, x = layer(), torch.randint(-3, 4, (4, K)).float()
    made(x)
    change(made)
    assert torch.equal(made(x), wanted(made, x))
    assert len(packs) == 2
    assert made.packed_bytes == 4 * N * K, "the old copy stays"


def _with_gradient(weight: Any) -> Any:
    weight.grad = torch.ones_like(weight)
    return weight


def test_copies_for_other_kernels_go_with_the_weight(packs: list[int]) -> None:
    from tirgemm.torch import register
    from tirgemm.torch.kernel_table import TABLE

    one = packing_kernel(f"1x{N}x{K}:f32:nt")
    register(one)
    try:
        made, x = layer(), torch.randint(-3, 4, (4, K)).float()
        made(x)
        made(x[:1])
        assert made.packed_bytes == 2 * 4 * N * K
        made.weight.add_(1)
        assert torch.equal(made(x), wanted(made, x))
        assert made.packed_bytes == 4 * N * K
    finally:
        TABLE.remove(one)
    assert len(packs) == 2


def test_the_copy_for_a_kernel_that_was_replaced_goes_as_its_successor_packs() -> None:
    from tirgemm.torch import Linear, register
    from tirgemm.torch.kernel_table import TABLE

    problem, copy = f"1..8x{N + 4}x{K}:f32:nt", 4 * (N + 4) * K
    first, one = packing_kernel(problem), packing_kernel(problem.replace("1..8", "1"))
    second = packing_kernel(problem, workspaces=(Workspace("packed_b", copy + 64),))
    made, x = Linear(K, N + 4, bias=False, prepack=True), torch.randint(-3, 4, (4, K)).float()
    try:
        for kernel, rows, nbytes in ((first, 4, copy), (one, 1, 2 * copy), (second, 4, 2 * copy + 64)):
            register(kernel)
            assert torch.allclose(made(x[:rows]), wanted(made, x[:rows]), atol=1e-4)
            assert made.packed_bytes == nbytes
    finally:
        for kernel in (one, second):
            TABLE.remove(kernel)


def _same_memory(made: Any) -> Any:
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(made.weight.detach()))


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda made: made.weight.data.add_(1),
        lambda made: made.weight.untyped_storage().copy_(torch.full((N, K), 5.0).untyped_storage()),
        lambda made: _same_memory(made).add_(1),
        lambda made: made.weight.detach().numpy().__iadd__(1),
    ],
    ids=["data", "storage", "DLPack", "NumPy"],
)
def test_a_rewrite_of_a_whole_weight_is_seen_though_pytorch_does_not_count_it(rewrite: Any, packs: list[int]) -> None:
    made, x = layer(), torch.randint(-3, 4, (4, K)).float()
    made(x)
    version = made.weight._version
    rewrite(made)
    assert made.weight._version == version
    for _ in range(2):
        assert torch.equal(made(x), wanted(made, x))
    assert len(packs) == 2


def test_a_rewrite_of_the_buffer_behind_several_weights_is_seen(packs: list[int]) -> None:
    layers, x = [layer(), layer()], torch.randint(-3, 4, (4, K)).float()
    whole = -(-N * K // 4) * 4  # both begin at multiples of 16 bytes
    flat = torch.ones(2 * whole)
    for made, part in zip(layers, flat.split(whole), strict=True):
        made.weight.data = part[: N * K].view(N, K)
        made(x)
    flat.mul_(2)
    for made in layers:
        assert torch.equal(made(x), wanted(made, x))
    assert len(packs) == 4


@pytest.mark.parametrize(("rows", "columns"), [(1, 40), (40, 1), (3, 5), (16, 16), (17, 33), (1, 1), (500, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_samples_of_a_weight_are_its_own_elements(rows: int, columns: int, dtype: Any) -> None:
    from tirgemm.torch.packed_weight import _samples

    memory = torch.full((rows, columns + 3), torch.nan, dtype=dtype)
    weight = memory[:, :columns]
    weight.copy_(torch.arange(rows * columns).view(rows, columns) % 128)
    samples = _samples(weight).view(dtype)
    assert samples.shape == (min(16, max(rows, columns)),)
    assert not samples.isnan().any(), "a gap is none of the weight's"
    assert samples[0] == weight[0, 0]
    assert len({int(each) for each in samples}) == len(samples) or rows * columns > 128


def test_what_pytorch_does_not_count_needs_repack() -> None:
    made, x = layer(), torch.randint(-3, 4, (4, K)).float()
    made(x)
    made.weight.data.zero_()
    made.repack()
    assert made.packed_bytes == 0
    assert torch.equal(made(x), torch.zeros(4, N))


def test_what_has_no_version_is_not_kept(packs: list[int]) -> None:
    with torch.inference_mode():
        made, x = layer(), torch.randint(-3, 4, (4, K)).float()
        assert torch.equal(made(x), wanted(made, x))
    assert packs == []


# Steps that change parameters without counting it, as fused ones do.
def uncounted_step(parameters: Any) -> Any:
    def step(self: Any) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(2)

    return type("Uncounted", (torch.optim.Optimizer,), {"step": step})(parameters, {}).step


def fused_step(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=0.5, fused=True).step


def compiled_fused_step(parameters: Any) -> Any:
    return torch.compile(fused_step(parameters), backend="aot_eager")


def compiled_step(parameters: Any) -> Any:
    return torch.compile(torch.optim.SGD(parameters, lr=0.5).step, backend="aot_eager")


@pytest.mark.parametrize("step_of", [uncounted_step, fused_step, compiled_fused_step, compiled_step])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_weight_in_training_is_packed_again_after_each_step(step_of: Any, compiled: bool) -> None:
    made, x = layer(), torch.randint(-3, 4, (4, K)).float()
    step = step_of([made.weight])
    forward = torch.compile(made, backend="aot_eager") if compiled else made
    for _ in range(3):
        before = made(x)
        assert torch.allclose(before, wanted(made, x), atol=1e-4)
        with torch.enable_grad():
            forward(x).square().sum().backward()
        step()
        assert not torch.allclose(made(x), before, atol=1e-4)
    torch.compiler.reset()


def test_a_step_forgets_slices_of_its_memory_and_no_other_weight() -> None:
    made, other = layer(), layer()
    whole = torch.nn.Parameter(torch.randint(-3, 4, (5, N, K)).float())
    made.weight = torch.nn.Parameter(whole.data[4])  # which begins at a multiple of 16 bytes
    x = torch.randint(-3, 4, (4, K)).float()
    for each in (made, other):
        each(x)
        assert each.packed_bytes == 4 * N * K
    uncounted_step([whole])()
    assert [each.packed_bytes for each in (made, other)] == [0, 4 * N * K]
    assert torch.equal(made(x), wanted(made, x))


def test_a_call_that_records_gradients_of_the_weight_forgets_what_is_packed() -> None:
    made, x = layer(), torch.randint(-3, 4, (4, K)).float()
    made(x)
    with torch.enable_grad():
        made(x.clone().requires_grad_()).sum().backward()
        assert made.packed_bytes == 0
        made.requires_grad_(False)(x)
        assert made.packed_bytes == 4 * N * K
        made(x.clone().requires_grad_()).sum().backward()
        assert made.packed_bytes == 4 * N * K, "those of x alone change no weight"


def test_gradients_autocast_and_other_dtypes_are_pytorchs() -> None:
    made, x = layer(), torch.randint(-3, 4, (4, K)).float()
    made(x)
    with torch.enable_grad():
        made(x).sum().backward()
        assert torch.equal(made.weight.grad, x.sum(0).expand(N, K))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert made(x).dtype == torch.bfloat16
    assert torch.equal(made.double()(x.double()), wanted(made, x.double()))


def test_threads_share_a_packed_weight() -> None:
    from concurrent.futures import ThreadPoolExecutor

    made, x = layer(), torch.randint(-3, 4, (8, K)).float()
    right = wanted(made, x)

    def call(_: int) -> bool:
        with torch.no_grad():
            return bool(torch.equal(made(x), right))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(64)))


def test_another_weight_in_the_same_memory_is_packed_again() -> None:
    made, x = layer(), torch.randint(-3, 4, (4, K)).float()
    made(x)
    other = torch.nn.Parameter(made.weight.data)
    while other._version < made.weight._version:
        other.add_(1)
    assert (other.data_ptr(), other._version) == (made.weight.data_ptr(), made.weight._version)
    made.weight = other
    assert torch.equal(made(x), wanted(made, x))
