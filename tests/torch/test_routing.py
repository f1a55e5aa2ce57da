"""``routed``: PyTorch's own samples of its products through kernels of the x86 family, beside PyTorch's results."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from tests.helpers.artifact_samples import kernel
from tests.helpers.sample_source import SampleSource
from tests.observed_calls import observed
from tests.torch.built_kernels import BuiltKernels
from tests.waiting import until
from tirgemm.detect import device as detect_device
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
from tests.torch.operator_samples import check_samples, prepare_missing  # noqa: E402 - has PyTorch

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def single_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def source() -> Iterator[BuiltKernels]:
    from tirgemm.torch.kernel_table import TABLE

    with BuiltKernels() as built:
        yield built
        for kernel in built.kernels:
            TABLE.remove(kernel)


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"),
    [(torch.float32, 1.3e-6, 2e-5), (torch.float16, 2e-3, 2e-2), (torch.bfloat16, 2e-2, 2e-1)],
    ids=["fp32", "fp16", "bf16"],
)
def test_every_sample_of_pytorch_is_right_and_what_no_kernel_computes_is_counted_by_reason(
    source: BuiltKernels, dtype: Any, rtol: float, atol: float
) -> None:
    if prepare_missing(source, dtype) is not None:
        pytest.skip("no family writes for this CPU")
    total = check_samples(dtype, "cpu", rtol=rtol, atol=atol)
    assert total["samples"] > 100
    assert total["served"] > 300, total


# -- the block itself, on kernels compiled in a moment -------------------------------------------------

M, N, K = 7, 29, 31


@pytest.fixture(scope="module")
def registered() -> Iterator[list[Any]]:
    from tirgemm.torch import register
    from tirgemm.torch.kernel_table import TABLE

    texts = [f"{M}x{N}x{K}:f32:nn", f"{M}x{N}x{K}:f32:nn:alpha", f"{M}x{K}x{N}:f32:nt", f"{K}x{N}x{M}:f32:tn"]
    kernels = [kernel(text) for text in texts]
    for each in kernels:
        register(each)
    yield kernels
    for each in kernels:
        TABLE.remove(each)


def integers(*shape: int) -> Any:
    return torch.randint(-3, 4, shape).float()


@pytest.mark.usefixtures("registered")
def test_gradients_are_right_and_their_products_are_routed_too() -> None:
    from tirgemm.torch import routed

    a, b = integers(M, K).requires_grad_(), integers(K, N).requires_grad_()
    with routed() as counted:
        (a @ b).sum().backward()
    assert counted.counts == {("mm", "served"): 3}
    assert torch.equal(a.grad, b.detach().sum(1).expand(M, K))
    assert torch.equal(b.grad, a.detach().sum(0).expand(N, K).T)


@pytest.mark.usefixtures("registered")
def test_blocks_nest_and_are_of_their_thread_alone() -> None:
    from tirgemm.torch import routed

    a, b = integers(M, K), integers(K, N)
    with routed() as outer:
        torch.mm(a, b)
        with routed("default") as inner:
            torch.mm(a, b)
            with ThreadPoolExecutor(1) as pool:
                assert torch.equal(pool.submit(torch.mm, a, b).result(), torch.mm(a, b))
        torch.mm(a, b)
    torch.mm(a, b)
    assert (outer.served, inner.served) == (2, 2)
    assert str(outer) == "2 of 2 products by kernels\n  mm: served: 2"


@pytest.mark.usefixtures("registered")
def test_an_error_within_a_block_ends_it() -> None:
    from tirgemm.torch import routed

    with pytest.raises(RuntimeError, match="mat1 and mat2"), routed() as counted:
        torch.mm(integers(M, K), integers(N, K))
    torch.mm(integers(M, K), integers(K, N))
    assert counted.reasons == {"shapes": 1}


@pytest.mark.usefixtures("registered")
def test_what_a_product_may_ask_beside_its_operands_is_pytorchs() -> None:
    from tirgemm.torch import routed

    a, b, c = integers(M, K), integers(K, N), integers(M, N)
    infinite = a * float("inf")
    with routed() as counted:
        assert torch.equal(torch.addmm(c, infinite, b, alpha=0), c)
        assert torch.equal(torch.addmm(torch.full_like(c, float("nan")), a, b, beta=0), a @ b)
        assert torch.equal(torch.addmm(c, a, b, beta=0, alpha=2), 2 * (a @ b))
        c.addmm_(a, b)
        with pytest.raises(RuntimeError, match="expand"):
            torch.addmm(integers(2, 3), a, b, beta=0)
        with pytest.raises(RuntimeError, match="dtype"):
            torch.addmm(c.double(), a, b, beta=0)
        torch.use_deterministic_algorithms(True)
        try:
            torch.mm(a, b)
        finally:
            torch.use_deterministic_algorithms(False)
    assert counted.reasons == {
        "alpha of 0": 1,
        "in place": 1,
        "shapes": 1,
        "dtypes or devices that differ": 1,
        "deterministic algorithms": 1,
    }
    assert counted.counts["addmm", "served"] == 2


@pytest.mark.usefixtures("registered")
def test_autocast_fake_tensors_and_graphs_are_as_without() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tirgemm.torch import routed

    a, b = integers(M, K), integers(K, N)
    with routed() as counted:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.mm(a, b).dtype == torch.bfloat16
        with FakeTensorMode() as mode:
            assert torch.mm(mode.from_tensor(a), mode.from_tensor(b)).shape == (M, N)
        assert torch.mm(a.to("meta"), b.to("meta")).is_meta
        assert torch.equal(torch.compile(torch.mm, backend="aot_eager")(a, b), a @ b)
    assert counted.reasons == {"no kernel": 1}, "autocast's, in bfloat16"


@pytest.mark.usefixtures("registered")
def test_dynamo_compiles_nothing_of_a_product_that_a_compiled_function_leaves_to_python() -> None:
    from torch._dynamo.utils import counters

    from tirgemm.torch import routed
    from tirgemm.torch.aten_overrides import install

    def left_to_python(a: Any, b: Any) -> Any:
        while True:  # within a loop and a try dynamo leaves the function at a break, but looks at what it calls
            try:
                install()
                product = torch.mm(a, b)
                torch._dynamo.graph_break()
                return product
            finally:
                pass

    a, b = integers(M, K), integers(K, N)
    torch._dynamo.reset()
    counters.clear()
    with routed("default") as counted:
        assert torch.equal(torch.compile(left_to_python, backend="eager")(a, b), (a[:, :, None] * b[None]).sum(1))
    assert counted.counts == {("mm", "served"): 1}
    assert counters["frames"]["total"] == 1


def test_a_policy_takes_tuned_kernels_alone_or_any() -> None:
    from tests.helpers.artifact_samples import TRUST, certified
    from tirgemm.artifact import load
    from tirgemm.torch import register, routed
    from tirgemm.torch.kernel_table import TABLE

    fallback, tuned = (
        load(certified(Gemm(3, 5, 11, "f32", "nn"), role=role), trust=TRUST) for role in ("fallback", "tuned")
    )
    a, b = integers(3, 11), integers(11, 5)
    try:
        for kernels, served in (([fallback], ["default"]), ([tuned, fallback], ["tuned", "shipped", "default"])):
            for each in kernels:
                register(each)
            for policy in ("tuned", "shipped", "default"):
                with routed(policy) as counted:
                    assert torch.equal(torch.mm(a, b), a @ b)
                assert (counted.served > 0) == (policy in served), (policy, counted)
    finally:
        TABLE.remove(fallback)
        TABLE.remove(tuned)
    with (
        pytest.raises(InvalidRequest, match="policy is 'fast'; it must be one of tuned, shipped, default"),
        routed(cast(Any, "fast")),
    ):
        pass


@pytest.mark.parametrize("wait", [False, True])
def test_a_source_is_asked_once_a_problem_and_its_kernels_serve_the_next_calls(wait: bool) -> None:
    from tirgemm.torch import routed
    from tirgemm.torch.kernel_table import TABLE

    source = SampleSource()
    a, b = integers(4, 11), integers(11, 5)
    with routed("default", source=source, wait=wait) as counted:
        first = torch.mm(a, b)
        if not wait:
            while not counted.served:
                assert torch.equal(torch.mm(a, b), first)
    assert counted.counts["mm", "served"] >= 1
    assert wait == (counted.counts["mm", "no kernel"] == 0)
    assert source.asked == [Gemm(4, 5, 11, "f32", "nn")]
    for each in source.made:
        TABLE.remove(each)


@pytest.mark.parametrize("wait", [False, True])
def test_why_a_source_made_no_kernel_is_told(wait: bool) -> None:
    from tirgemm.torch import routed
    from tirgemm.torch.kernel_table import TABLE

    gemm = Gemm(4, 5, 11, "f32", "nn")
    with routed("default", source=SampleSource(fails=True), wait=wait) as counted:
        torch.mm(integers(4, 11), integers(11, 5))
        until(lambda: gemm in counted.failures)
    assert str(counted).splitlines()[2:] == [f"  no kernel for {gemm}: {counted.failures[gemm]}"]
    assert "the compiler went away" in counted.failures[gemm]
    assert counted.prepare(SampleSource(refuses=[gemm])) == {gemm: "no family writes it"}
    assert counted.failures == {gemm: "no family writes it"}
    source = SampleSource()
    assert counted.prepare(source) == counted.failures == {}
    for each in source.made:
        TABLE.remove(each)


def test_what_was_missing_is_prepared_as_one_group() -> None:
    from tirgemm.torch import routed
    from tirgemm.torch.kernel_table import TABLE

    products = [(integers(4, 11), integers(11, 5)), (integers(3, 7), integers(7, 9)), (integers(2, 5), integers(5, 3))]
    with routed("default") as calls:
        wanted = [torch.mm(a, b) for a, b in products]
    assert calls.served == 0
    unwritten = Gemm(2, 3, 5, "f32", "nn")
    source = SampleSource(refuses=[unwritten])
    try:
        assert calls.prepare(source) == {unwritten: "no family writes it"}
        assert source.groups == [tuple(calls.missing)]
        with routed("default") as again:
            assert all(torch.equal(torch.mm(a, b), c) for (a, b), c in zip(products, wanted, strict=True))
        assert (again.served, list(again.missing)) == (2, [unwritten])
    finally:
        for each in source.made:
            TABLE.remove(each)
    # What makes nothing by this policy is looked up all the same.
    there = SampleSource(stored=[unwritten])
    try:
        assert calls.prepare(there, "tuned").keys() == calls.missing.keys() - {unwritten}
        with routed() as tuned:
            assert [torch.equal(torch.mm(a, b), c) for (a, b), c in zip(products, wanted, strict=True)] == [True] * 3
        assert tuned.served == 1
    finally:
        for each in there.made:
            TABLE.remove(each)
    with pytest.raises(InvalidRequest, match="policy is 'all'"):
        calls.prepare(source, cast(Any, "all"))
    with pytest.raises(InvalidRequest, match="wait is 'no'; it must be True or False"), routed(wait=cast(Any, "no")):
        pass
    with pytest.raises(InvalidRequest, match="source is"):
        calls.prepare(cast(Any, "here"))


def test_operands_are_copied_only_for_a_kernel_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import register, routed
    from tirgemm.torch.kernel_table import TABLE

    copied: list[tuple[int, ...]] = []
    contiguous = torch.Tensor.contiguous
    monkeypatch.setattr(torch.Tensor, "contiguous", observed(contiguous, lambda x: copied.append(tuple(x.shape))))
    a, b, c = integers(3, 1, 11).expand(3, 4, 11), integers(3, 11, 5), integers(3, 4, 1).expand(3, 4, 5)
    wanted = torch.baddbmm(c, a, b, alpha=2)
    text = "4x5x11:f32:nn:batch=3:alpha:beta"
    with routed() as counted:
        assert torch.equal(torch.baddbmm(c, a, b, alpha=2), wanted)
    assert [str(gemm) for gemm in counted.missing] == [text]
    assert copied == []
    made = kernel(text)
    register(made)
    try:
        with routed() as counted:
            assert torch.equal(torch.baddbmm(c, a, b, alpha=2), wanted)
        assert counted.counts == {("baddbmm", "served"): 1}
        assert copied == [(3, 4, 11), (3, 4, 5)]
    finally:
        TABLE.remove(made)


def test_an_output_over_an_input_is_what_it_is_without_routing() -> None:
    from tirgemm.torch import register, routed
    from tirgemm.torch.kernel_table import TABLE

    size = 8
    start, a, b = integers(2 * size, size), integers(size, size), integers(size, size)

    def result(call: Any) -> Any:
        """What ``call`` makes of all the memory, or says."""
        memory = start.clone()
        try:
            call(memory, memory[:size])
        except RuntimeError as error:
            return str(error)
        return memory

    calls = {
        "transposed": lambda _, x: torch.addmm(x.t(), a, b, out=x),
        "scaled": lambda _, x: torch.addmm(x.t(), a, b, beta=2, out=x),
        "not read": lambda _, x: torch.addmm(x.t(), a, b, beta=0, out=x),
        "a row": lambda _, x: torch.addmm(x[1], a, b, out=x),
        "a column": lambda _, x: torch.addmm(x[:, 1], a, b, out=x),
        "every other row": lambda memory, x: torch.addmm(memory[::2, :1].expand(size, size), a, b, out=x),
        "shifted": lambda memory, x: torch.addmm(memory[1 : size + 1], a, b, out=x),
        "batch": lambda _, x: torch.baddbmm(x.t()[None], a[None], b[None], out=x[None]),
    }
    wanted = {name: result(call) for name, call in calls.items()}
    assert "refer to a single memory location" in wanted["transposed"]
    text = f"{size}x{size}x{size}:f32:nn"
    kernels = [kernel(text + more) for more in ("", ":alpha", ":alpha:beta", ":bias")]
    for each in kernels:
        register(each)
    try:
        for name, call in calls.items():
            with routed() as counted:
                got = result(call)
            assert got == wanted[name] if isinstance(got, str) else torch.equal(got, wanted[name]), name
            assert counted.served == 0, name
        with routed() as counted:
            beside = torch.addmm(start[:size].t(), a, b, out=torch.empty(size, size))
            over = start[:size].clone()
            torch.addmm(over, a, b, beta=0, out=over)
        assert torch.equal(beside, start[:size].t() + a @ b)
        assert torch.equal(over, a @ b)
        assert counted.counts == {("addmm", "served"): 2}
    finally:
        for each in kernels:
            TABLE.remove(each)


def test_a_source_that_fails_leaves_calls_to_pytorch() -> None:
    from tirgemm.torch import routed

    source = SampleSource(fails=True)
    a, b = integers(6, 11), integers(11, 5)
    with routed("default", source=source, wait=True) as counted:
        assert torch.equal(torch.mm(a, b), torch.mm(a, b))
    assert counted.reasons == {"no kernel": 2}
    assert len(source.asked) == 1


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("scalar", [1e300, -1e300, float("inf"), float("nan")])
def test_scalars_that_are_no_finite_fp32_are_pytorchs(scalar: float) -> None:
    from tirgemm.torch import routed

    a, b, c = integers(M, K), integers(K, N), integers(M, N)

    def result(**scalars: float) -> Any:
        try:
            return torch.addmm(c, a, b, **scalars)
        except RuntimeError as error:
            return str(error)

    for name in ("alpha", "beta"):
        wanted = result(**{name: scalar})
        with routed() as counted:
            got = result(**{name: scalar})
        assert counted.reasons == {"scalars": 1}
        assert got == wanted if isinstance(wanted, str) else torch.allclose(got, wanted, equal_nan=True)


def test_a_problem_of_two_devices_is_asked_for_on_each() -> None:
    from tirgemm.torch.routing import _Requests

    gemm, source = Gemm(4, 5, 11, "f32", "nn"), SampleSource(fails=True)
    cpu = detect_device("cpu")
    requests = _Requests(source, "default", True, {})
    assert [requests.ask(gemm, place) for place in (cpu, cpu.with_(arch="other"), cpu)] == [True, True, False]
    requests = _Requests(source, "default", False, {})
    for place in (cpu, cpu.with_(arch="other")):
        requests.ask(gemm, place)
    until(lambda: len(source.groups) == 4)
    assert source.asked == [gemm] * 4


def test_a_pytorch_without_what_it_needs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import aten_overrides

    monkeypatch.setattr(aten_overrides, "_installed", [])
    monkeypatch.delattr(torch.library, "get_kernel")
    with pytest.raises(InvalidRequest, match=r"routed needs torch.library.get_kernel, which PyTorch .* does not have"):
        aten_overrides.install()
