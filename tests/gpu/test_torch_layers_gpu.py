"""``linear``, ``Linear``, ``accelerate`` and ``routed`` on a real GPU: streams, graphs, swapped kernels, two places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.observed_calls import observed

torch = pytest.importorskip("torch", reason="the GPU tests of the layers call with PyTorch tensors")

from tests.gpu.launcher_samples import GPUS, SIGNER, artifact, loaded  # noqa: E402 (it imports torch)
from tirgemm.artifact import Kernel, pack, read  # noqa: E402
from tirgemm.artifact.manifest import Contents, SetContents  # noqa: E402
from tirgemm.artifact.trust import Trust  # noqa: E402
from tirgemm.gemm import Gemm, Range  # noqa: E402
from tirgemm.timings import Timings  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not GPUS, reason="this machine has no NVIDIA GPU"),
]

N, K = 129, 65
F: Any = torch.nn.functional


def selected(text: str, role: Any) -> Kernel:
    """The simt family's default for a problem, packed as a kernel that was selected as ``role``."""
    package = read(artifact(text), Trust.of(SIGNER.public))
    manifest = package.manifest
    contents = Contents(
        gemm=manifest.gemm,
        config=manifest.config,
        device=manifest.device,
        launch=manifest.launch,
        binary=package.binary,
        binary_format=manifest.binary_format,
        sources=package.sources,
        flags=(*manifest.flags, f"role={role}"),
        certificate=None,
        timings=Timings(),
        regime="sustained",
        role=role,
    )
    return loaded(pack(contents, SIGNER))


@pytest.fixture
def register() -> Iterator[Callable[[Kernel], Kernel]]:
    from tirgemm.torch import register as offer
    from tirgemm.torch.kernel_table import TABLE

    kernels: list[Kernel] = []

    def add(kernel: Kernel) -> Kernel:
        kernels.append(kernel)
        offer(kernel)
        return kernel

    with torch.no_grad():
        yield add
    for kernel in kernels:
        TABLE.remove(kernel)


@pytest.fixture
def by_pytorch(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes of the inputs whose ``F.linear`` PyTorch has computed."""
    shapes: list[Any] = []
    real = F.linear
    monkeypatch.setattr(F, "linear", observed(real, lambda x, *_: shapes.append(tuple(x.shape))))
    return shapes


def integers(*shape: int, dtype: Any = torch.float16, device: str = "cuda:0") -> Any:
    return torch.randint(-2, 3, shape, device=device).to(dtype)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_linear_is_pytorchs_for_any_leading_dimensions(
    dtype: str, bias: bool, register: Any, by_pytorch: list[Any]
) -> None:
    from tirgemm.torch import linear

    register(loaded(artifact(f"1..257x{N}x{K}:{dtype}:nt{':bias' if bias else ''}")))
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    weight, b = integers(N, K, dtype=kind), integers(N, dtype=kind) if bias else None
    for shape in ((5, K), (K,), (2, 3, K), (257, K)):
        x = integers(*shape, dtype=kind)
        wanted = x.double() @ weight.double().t() + (b.double() if b is not None else 0)
        for _ in range(2):
            assert torch.equal(linear(x, weight, b).double(), wanted)
    assert by_pytorch == []
    assert torch.equal(linear(integers(0, K, dtype=kind), weight, b), F.linear(integers(0, K, dtype=kind), weight, b))
    assert linear(integers(258, K, dtype=kind), weight, b).shape == (258, N)
    assert len(by_pytorch) >= 2


def test_the_device_and_the_dtype_may_change_between_calls(register: Any) -> None:
    from tirgemm.torch import linear

    register(loaded(artifact(f"1..64x{N}x{K}:f16:nt")))
    x, weight = integers(5, K), integers(N, K)
    wanted = F.linear(x, weight)
    for place in ("cuda", "cpu", "cuda", "meta", "cuda"):
        result = linear(x.to(place), weight.to(place))
        assert result.device.type == place
        assert place == "meta" or torch.equal(result.to("cuda").double(), wanted.double())
    assert torch.equal(linear(x.bfloat16(), weight.bfloat16()).double(), wanted.double())
    with pytest.raises(RuntimeError):
        linear(x, weight.cpu())
    assert torch.equal(linear(x, weight), wanted)


def test_it_runs_on_the_current_stream(register: Any) -> None:
    from tirgemm.torch import linear

    register(loaded(artifact(f"1..64x{N}x{K}:f16:nt")))
    x, weight, stream = integers(5, K), integers(N, K), torch.cuda.Stream()
    wanted, late = F.linear(x, weight), torch.zeros_like(x)
    linear(x, weight)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(x)
        result = linear(late, weight)
    stream.synchronize()
    assert torch.equal(result, wanted)


def test_a_captured_graph_goes_on_with_its_kernel_when_another_is_swapped_in(register: Any) -> None:
    from tirgemm.torch import Linear
    from tirgemm.torch.kernel_table import TABLE

    text = f"5x{N}x{K}:f16:nt"
    first = register(selected(text, "fallback"))
    layer = Linear(K, N, bias=False, device="cuda", dtype=torch.float16)
    layer.weight.copy_(integers(N, K))
    x = integers(5, K)
    layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(x)
    second = register(selected(text, "tuned"))
    assert TABLE.find(first.gemm, first.device) is second
    del first
    x.copy_(integers(5, K))
    graph.replay()
    torch.cuda.synchronize()
    wanted = x.double() @ layer.weight.double().t()
    assert torch.equal(captured.double(), wanted)
    assert torch.equal(layer(x).double(), wanted), "the new kernel, eagerly"
    layer.weight.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured.double(), 2 * wanted), "the weight is shared"


def kernel_set(text: str, highs: tuple[int, ...]) -> Kernel:
    """A set of the simt family's defaults, a kernel up to each of ``highs``."""
    members, low, whole = [], 1, Gemm.parse(text)
    for high in highs:
        package = read(artifact(str(whole.with_(m=Range(low, high)))), Trust.of(SIGNER.public))
        manifest = package.manifest
        members.append(
            Contents(
                gemm=manifest.gemm,
                config=manifest.config,
                device=manifest.device,
                launch=manifest.launch,
                binary=package.binary,
                binary_format=manifest.binary_format,
                sources=package.sources,
                flags=manifest.flags,
                certificate=None,
                timings=Timings(),
            )
        )
        low = high + 1
    return loaded(pack(SetContents(gemm=whole, members=tuple(members), timings=Timings()), SIGNER))


def test_one_layer_with_a_kernel_set_is_captured_for_several_rows_and_compiled_once(register: Any) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    from tirgemm.torch import Linear

    register(kernel_set(f"1..64x{N}x{K}:f16:nt", (2, 16, 64)))
    layer = Linear(K, N, bias=False, device="cuda", dtype=torch.float16)
    layer.weight.copy_(integers(N, K))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend=counter)
    graphs = {}
    for m in (2, 5, 16, 17, 64):
        x = integers(m, K)
        wanted = x.double() @ layer.weight.double().t()
        assert torch.equal(compiled(x).double(), wanted)
        layer(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = layer(x)
        graphs[m] = graph, x, result
    assert counter.frame_count == 1
    for graph, x, result in graphs.values():
        x.copy_(integers(*x.shape))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result.double(), x.double() @ layer.weight.double().t())


def invariant_kernel(text: str) -> Kernel:
    """The default of the family that writes invariant kernels here."""
    from tirgemm.families.choice import ranked_defaults
    from tirgemm.tuning.build.compile import build
    from tirgemm.tuning.tuning_task import chosen_families

    gemm = Gemm.parse(text)
    _, config = ranked_defaults(chosen_families(gemm, GPUS[0], None), gemm, GPUS[0], "sustained")[0]
    return loaded(pack(build(gemm, config, GPUS[0]).contents(gemm, config, GPUS[0]), SIGNER))


def test_an_invariant_layer_gives_a_row_the_same_bits_in_every_batch(register: Any, by_pytorch: list[Any]) -> None:
    from tirgemm.torch import Linear

    for m in ("7", "1..300"):
        register(invariant_kernel(f"{m}x256x512:f16:nt:bias:invariant"))
    layer = Linear(512, 256, device="cuda", dtype=torch.float16, invariant=True)
    x = torch.randn(300, 512, device="cuda", dtype=torch.float16)
    whole = layer(x)
    for first, last in ((0, 7), (3, 4), (100, 107), (41, 297)):
        assert torch.equal(layer(x[first:last]), whole[first:last])
    order = torch.randperm(300, device="cuda")
    assert torch.equal(layer(x[order]), whole[order])
    assert torch.equal(layer(x.view(3, 100, 512)), whole.view(3, 100, 256))
    assert by_pytorch == []


def test_the_logits_of_a_prompt_have_the_same_bits_alone_and_within_batches(
    register: Any, by_pytorch: list[Any]
) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from tests.torch.small_decoder import HIDDEN, small_decoder
    from tirgemm.torch import accelerate

    decoder = small_decoder(40, "cuda", torch.float16)
    rows: list[int | Range] = [5, Range(1, 64)]
    for m in ("5", "1..64"):
        for problem in (f"{3 * HIDDEN}x{HIDDEN}:f16:nt:bias", f"{HIDDEN}x{HIDDEN}:f16:nt", f"40x{HIDDEN}:f16:nt"):
            register(invariant_kernel(f"{m}x{problem}:invariant"))
    for module in (decoder.layers, decoder.head):
        report = accelerate(module, rows=rows, policy="tuned", invariant=True)
        assert all(linear.replaced for linear in report.linears), str(report)
        assert all(gemm.invariant for gemm in report.gemms)
    x = decoder.prompts(5, count=12)
    # One block a head and a prompt, whatever the batch; what else attention may run on promises no such thing.
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        logits = decoder(x)
        assert logits.shape == (12, 1, 40)
        assert logits.isfinite().all()
        for number in range(12):
            assert torch.equal(decoder(x[number : number + 1])[0], logits[number])
        assert torch.equal(decoder(x[3:7]), logits[3:7])
        order = torch.randperm(12, device="cuda")
        assert torch.equal(decoder(x[order]), logits[order])
    assert by_pytorch == []


def test_a_model_is_accelerated_and_undone(register: Any, by_pytorch: list[Any]) -> None:
    from tirgemm.torch import accelerate

    register(loaded(artifact(f"1..64x{N}x{K}:f16:nt:bias")))
    nn = torch.nn
    model = nn.Sequential(nn.Linear(K, N), nn.ReLU(), nn.Linear(N, 7)).half().cuda()
    x = torch.randn(5, K, device="cuda", dtype=torch.float16)
    wanted = model(x)
    by_pytorch.clear()
    report = accelerate(model, rows=Range(1, 64), policy="tuned", measured=False)
    assert [linear.replaced for linear in report.linears] == [True, False]
    assert torch.allclose(model(x), wanted, atol=1e-2, rtol=1e-2)
    assert by_pytorch == [(5, N)]
    assert torch.allclose(torch.compile(model, backend="aot_eager")(x), wanted, atol=1e-2, rtol=1e-2)
    assert model.cpu()(x.cpu().half()).device.type == "cpu"
    report.undo()
    assert torch.equal(model.cuda()(x), wanted)


def test_kernels_are_raced_against_pytorch_as_a_model_is_accelerated(register: Any, by_pytorch: list[Any]) -> None:
    from tirgemm.torch import accelerate
    from tirgemm.torch.kernel_table import TABLE

    kernel = loaded(artifact(f"1..64x{N}x{K}:f16:nt:bias"))
    register(kernel)
    model = torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.Linear(K, N)).half().cuda()
    x = torch.randn(33, K, device="cuda", dtype=torch.float16)
    wanted = torch.nn.functional.linear(x, model[0].weight, model[0].bias)
    report = accelerate(model, rows=Range(1, 64), policy="tuned")
    left = TABLE.excluded_rows(kernel.gemm, kernel.device)
    assert all(ratio > 0.9 for ratio in left.values()), "but for the margin and the spread PyTorch is faster"
    served = TABLE.find(kernel.gemm.with_(m=33), kernel.device)
    assert (served is None) == any(rows.low <= 33 <= rows.high for rows in left)
    by_pytorch.clear()
    assert torch.allclose(model[0](x), wanted, atol=1e-2, rtol=1e-2)
    assert len(by_pytorch) == (served is None), str(report)


@pytest.mark.parametrize("graph", [False, True])
def test_a_model_is_raced_as_it_is_called_and_gives_slow_kernels_back(register: Any, graph: bool) -> None:
    from tirgemm.torch import accelerate
    from tirgemm.torch.alternation import captured
    from tirgemm.torch.kernel_table import TABLE

    # The simt family's defaults of large problems, beside PyTorch's product on tensor cores.
    n, m, counts = 2048, Range(512, 2048), (512, 1024)
    kernel = loaded(artifact(f"{m}x{n}x{n}:f16:nt:bias"))
    register(kernel)
    model = torch.nn.Sequential(*(torch.nn.Linear(n, n) for _ in range(4))).half().cuda()
    x = {rows: torch.randn(rows, n, device="cuda", dtype=torch.float16) for rows in counts}
    wanted = {rows: model(given) for rows, given in x.items()}
    report = accelerate(model, rows=m, policy="tuned", measured=False)
    assert len(report.replaced) == 4
    before, by_kernels = captured(lambda: model(x[1024]))
    computed = by_kernels.clone()
    report.race([partial(model, given) for given in x.values()], graph=graph)
    left = TABLE.excluded_rows(kernel.gemm, kernel.device)
    assert {(rows.low, rows.high) for rows in left} == {(512, 724), (725, 1024)}
    assert min(left.values()) > 1.5
    for rows, given in x.items():
        assert torch.equal(model(given), wanted[rows])
    by_kernels.zero_()
    before.replay()
    assert torch.equal(by_kernels, computed), "a graph that was captured before goes on"


def test_products_are_routed_and_gradients_are_pytorchs(register: Any) -> None:
    from tirgemm.torch import routed

    register(loaded(artifact(f"5x{N}x{K}:f16:nn")))
    register(loaded(artifact(f"5x{N}x{K}:f16:nn:batch=3:alpha:beta")))
    a, b = integers(5, K), integers(K, N)
    c, batch, matrices = integers(3, 5, N), integers(3, 5, K), integers(3, K, N)
    with torch.enable_grad(), routed("default") as counted:
        left = a.clone().requires_grad_()
        product = torch.mm(left, b)
        assert torch.equal(product.detach().double(), a.double() @ b.double())
        added = torch.baddbmm(c, batch, matrices[:1].expand(3, K, N), alpha=2)
        assert torch.equal(added.double(), c.double() + 2 * batch.double() @ matrices[:1].double())
        product.sum().backward()
    assert counted.counts["mm", "served"] == 1
    assert counted.counts["baddbmm", "served"] == 1
    assert torch.equal(left.grad.double(), b.double().sum(1).expand(5, K))


@pytest.mark.skipif(len(GPUS) < 2, reason="this machine has one NVIDIA GPU")
def test_each_gpu_computes_its_own(register: Any) -> None:
    from tirgemm.torch import linear

    register(loaded(artifact(f"1..64x{N}x{K}:f16:nt")))
    for place in ("cuda:0", "cuda:1", "cuda:0"):
        x, weight = integers(5, K, device=place), integers(N, K, device=place)
        result = linear(x, weight)
        assert result.device == x.device
        assert torch.equal(result.double(), x.double() @ weight.double().t())
