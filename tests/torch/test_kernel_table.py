"""Which of the registered kernels serves a call, and when calls choose anew."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.artifact_samples import TRUST, certified, cpu, kernel
from tests.observed_calls import observed
from tests.torch.restored_table import restored_table
from tests.torch.watched_kernel import watch
from tirgemm.artifact import Kernel, load
from tirgemm.errors import DeviceUnavailable, InvalidRequest
from tirgemm.gemm import Gemm, Range

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

GEMM = Gemm(5, 13, 17, "f32", "nt")


@pytest.fixture
def table() -> Any:
    from tirgemm.torch.kernel_table import KernelTable

    return KernelTable()


def test_the_number_of_rows_comes_before_the_narrowest_range_around_it(table: Any) -> None:
    exact, narrow, wide = (kernel(GEMM.with_(m=m)) for m in (5, Range(1, 8), Range(1, 64)))
    for each in (wide, narrow, exact):
        table.add(each)
    assert table.find(GEMM, cpu()) is exact
    assert table.find(GEMM.with_(m=6), cpu()) is narrow
    assert table.find(GEMM.with_(m=64), cpu()) is wide
    assert table.find(GEMM.with_(m=65), cpu()) is None
    assert table.find(GEMM.with_(m=Range(2, 30)), cpu()) is wide
    assert table.find(GEMM.with_(n=14), cpu()) is None
    assert table.find(GEMM, cpu().with_(units=cpu().units + 1)) is None
    table.remove(exact)
    assert table.find(GEMM, cpu()) is narrow


def test_a_kernel_for_less_alignment_serves_more(table: Any) -> None:
    four = kernel(GEMM.with_(align=4))
    table.add(four)
    assert table.find(GEMM, cpu()) is four
    assert table.find(GEMM.with_(align=8), cpu()) is four
    sixteen = kernel(GEMM)
    table.add(sixteen)
    assert table.find(GEMM, cpu()) is sixteen
    assert table.find(GEMM.with_(align=8), cpu()) is four
    table.remove(four)
    assert table.find(GEMM.with_(align=8), cpu()) is None


def test_a_tuned_kernel_replaces_a_default_and_no_default_a_tuned_one(table: Any) -> None:
    default, tuned = (load(certified(GEMM, role=role), trust=TRUST) for role in ("fallback", "tuned"))
    table.add(default)
    assert table.find(GEMM, cpu()) is default
    assert table.find(GEMM, cpu(), tuned=True) is None
    table.add(tuned)
    table.add(default)
    assert table.find(GEMM, cpu(), tuned=True) is tuned
    table.remove(default)
    assert table.find(GEMM, cpu()) is tuned, "another kernel's place"


def test_a_kernel_that_was_replaced_is_still_known_by_its_hash(table: Any) -> None:
    default, tuned = (load(certified(GEMM, role=role), trust=TRUST) for role in ("fallback", "tuned"))
    table.add(default)
    table.add(tuned)
    assert table.named(default.kernel_sha256) in (default, tuned), "one kernel, two artifacts"
    with pytest.raises(InvalidRequest, match="is registered with tirgemm::gemm"):
        table.named("0" * 64)


def test_pytorch_says_what_a_gpu_is_where_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm import detect
    from tirgemm.torch.kernel_table import device_of

    def absent(name: str) -> None:
        raise DeviceUnavailable(f"device {name}: the package cuda-bindings is not installed")

    shown = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=2**37, uuid="1-2"
    )
    monkeypatch.setattr(detect, "device", absent)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: shown)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    device_at = device_of.__wrapped__
    assert device_at(torch.device("cuda:3")).key == "cuda:sm_90a:nvidia-h200:132"
    assert (device_at(torch.device("cuda:3")).name, device_at(torch.device("cuda")).name) == ("cuda:3", "cuda:1")
    assert device_at(torch.device("cuda:3")).present
    with pytest.raises(DeviceUnavailable):
        device_at(torch.device("cpu"))


@pytest.fixture
def registered() -> Iterator[list[Kernel]]:
    from tirgemm.torch.kernel_table import TABLE

    kernels: list[Kernel] = []
    yield kernels
    for each in kernels:
        TABLE.remove(each)


def test_calls_choose_anew_when_a_kernel_comes_or_goes(
    registered: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import linear, matmul, register
    from tirgemm.torch.kernel_table import TABLE

    x, weight = torch.randint(-3, 4, (5, 17)).float(), torch.randint(-3, 4, (13, 17)).float()
    wanted, calls = torch.nn.functional.linear(x, weight), []

    def counted(name: str, gemm: Gemm) -> Kernel:
        made = watch(kernel(gemm), lambda _: calls.append(name), monkeypatch)
        registered.append(made)
        register(made)
        return made

    def called() -> list[str]:
        calls.clear()
        for _ in range(2):
            assert torch.equal(linear(x, weight), wanted)
            assert torch.equal(matmul(x, weight.t()), wanted)
        return list(calls)

    assert called() == []
    counted("range", GEMM.with_(m=Range(1, 8)))
    assert called() == ["range"] * 4
    exact = counted("exact", GEMM)
    assert called() == ["exact"] * 4
    TABLE.remove(exact)
    assert called() == ["range"] * 4


def test_more_kinds_of_calls_than_are_kept_are_still_right(
    registered: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import linear, register
    from tirgemm.torch.prepared_call import ChoiceCache

    monkeypatch.setattr(ChoiceCache, "LIMIT", 3)
    registered.append(kernel(GEMM.with_(m=Range(1, 64))))
    register(registered[0])
    weight = torch.randint(-3, 4, (13, 17)).float()
    for m in (*range(1, 20), *range(1, 20)):
        x = torch.randint(-3, 4, (m, 17)).float()
        assert torch.equal(linear(x, weight), torch.nn.functional.linear(x, weight))


def test_a_call_without_a_kernel_is_looked_at_once_until_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import linear, linear_call

    looked, ran, real = [], [], linear_call.linear_choice
    monkeypatch.setattr(linear_call, "linear_choice", observed(real, lambda x, *_: looked.append(x.shape[0])))
    memory, weight = torch.randn(16 * 19 + 4), torch.randn(11, 19)
    aligned = memory[-memory.data_ptr() % 16 // 4 :]
    odd, x = aligned[1 : 1 + 8 * 19].view(8, 19), aligned[: 7 * 19].view(7, 19)
    with restored_table() as table:
        for given in (odd, odd, x, x, x):
            assert torch.equal(linear(given, weight), torch.nn.functional.linear(given, weight))
        assert looked == [8, 8, 7], "of an odd address nothing is known about others"
        table.add(watch(kernel(Gemm(7, 11, 19, "f32", "nt")), lambda given: ran.append(given.shape[0]), monkeypatch))
        assert torch.allclose(linear(x, weight), torch.nn.functional.linear(x, weight), atol=1e-5)
        assert ran == [7]


def test_an_x_that_no_kernel_reads_is_looked_at_once_and_puts_out_none_that_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tirgemm.torch import linear, linear_call

    looked, ran, real = [], [], linear_call.linear_choice
    monkeypatch.setattr(linear_call, "linear_choice", observed(real, lambda x, *_: looked.append(x)))
    weight, memory = torch.randn(11, 19), torch.randn(7, 2 * 20)
    dense, sliced = torch.randn(7, 19), memory[:, :19]
    others = [sliced, memory[:, :38:2], torch.randn(19, 7).t(), torch.randn(0, 19), torch.randn(2, 7, 19)[:, ::2]]
    others.append(torch.randn(3, 7, 19).transpose(0, 1))
    with restored_table() as table:
        table.add(watch(kernel(Gemm(7, 11, 19, "f32", "nt")), lambda given: ran.append(len(given)), monkeypatch))
        for x in others:
            for _ in range(3):
                assert torch.equal(linear(x, weight), torch.nn.functional.linear(x, weight))
        assert len(looked) == len(others)
        looked.clear()
        for x in (dense, sliced, dense, sliced, dense):
            assert torch.allclose(linear(x, weight), torch.nn.functional.linear(x, weight), atol=1e-5)
        assert [x is dense for x in looked] == [True, False]
        assert ran == [7, 7, 7]


def test_where_autocast_is_on_a_layer_is_pytorchs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import linear, linear_call

    looked, real = [], linear_call.linear_choice
    monkeypatch.setattr(linear_call, "linear_choice", observed(real, lambda x, *_: looked.append(x)))
    x, weight = torch.randn(7, 19), torch.randn(11, 19)
    with restored_table() as table, torch.autocast("cpu", dtype=torch.bfloat16):
        table.add(kernel(Gemm(7, 11, 19, "f32", "nt")))
        assert linear(x, weight).dtype is torch.bfloat16
        assert not looked
        with pytest.raises(InvalidRequest, match="act is 'tanh'"):
            linear(x, weight, None, "tanh")


def test_pytorchs_function_is_kept_for_no_call_that_has_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import linear

    ran: list[Any] = []
    weight, x = torch.nn.Parameter(torch.randn(11, 19).half()), torch.randn(7, 2 * 19)
    dense, wide = x[:, :19].contiguous(), x[:, :19]
    with restored_table() as table:
        for lda in (0, 2 * 19):
            gemm = Gemm(7, 11, 19, "f32", "nt", lda=lda)
            table.add(watch(kernel(gemm), lambda given: ran.append(given.stride()[0]), monkeypatch))
        linear(dense.half(), weight)
        weight.data = weight.data.float()
        linear(dense, weight)
        assert ran == [19], "cast in place, it has a kernel"
        table.remove(table.find(Gemm(7, 11, 19, "f32", "nt"), cpu()))
        ran.clear()
        for given in (dense, wide, dense, wide):
            linear(given, weight)
        assert ran.count(2 * 19) == 2, "where x lies otherwise, it has a kernel"


def test_a_layer_at_an_odd_address_takes_no_kernel_from_those_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import linear

    ran: list[Any] = []
    memory, weight, x = torch.randn(16 + 11 * 19), torch.randn(11, 19), torch.randn(7, 19)
    odd = memory[1 : 1 + 11 * 19].view(11, 19)
    with restored_table() as table:
        table.add(watch(kernel(Gemm(7, 11, 19, "f32", "nt")), ran.append, monkeypatch))
        for each in (weight, odd, weight, odd, weight):
            assert torch.allclose(linear(x, each), torch.nn.functional.linear(x, each), atol=1e-5)
        assert len(ran) == 3
