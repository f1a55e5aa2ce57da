"""Invariant layers: the same bits of a prompt's logits alone and within batches, and never by a free kernel."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

import pytest

from tests.helpers.artifact_samples import SIGNER, TRUST
from tests.helpers.sample_source import SampleSource
from tests.torch.restored_table import restored_table
from tests.torch.watched_kernel import watch
from tirgemm.artifact import Kernel, load, pack
from tirgemm.detect import device
from tirgemm.families import family_named
from tirgemm.families.base import require_valid
from tirgemm.gemm import Gemm, Range
from tirgemm.kernel_source import Preparation

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

FREE = Gemm(Range(1, 64), 23, 19, "f32", "nt", bias=True)
INVARIANT = FREE.with_(invariant=True)


@pytest.fixture(autouse=True)
def table() -> Iterator[Any]:
    """A table that is as it was once the test is over."""
    from tirgemm.torch import linear_call

    with restored_table() as kept:
        yield kept
    linear_call._TOLD.clear()


class X86Kernels:
    """A KernelSource of x86 kernels, built and not certified; those of one m have tiles of their own."""

    tunes = False

    def __init__(self) -> None:
        self.gemms: list[Gemm] = []

    def lookup(self, gemm: Gemm, place: Any) -> Kernel:
        del place
        self.gemms.append(gemm)
        return x86_kernel(gemm)

    def refusal(self, gemm: Gemm, place: Any, policy: Any) -> str:
        del gemm, place, policy
        return "all are there"

    def prepare(self, gemms: Sequence[Gemm], place: Any, policy: Any, arrived: Any) -> Preparation:
        raise AssertionError(f"nothing is to be made: {gemms}, {place}, {policy}, {arrived}")


@cache
def x86_kernel(gemm: Gemm) -> Kernel:
    from tirgemm.tuning.build.compile import build

    cpu, family = device("cpu"), family_named("x86")
    config = family.default(gemm, cpu, "isolated")
    if isinstance(gemm.m, int):
        config = config.with_(tile_m=2, vectors=1, order="columns")
        require_valid(family, gemm, config, cpu)
    return load(pack(build(gemm, config, cpu).contents(gemm, config, cpu), SIGNER), trust=TRUST)


def test_the_logits_of_a_prompt_have_the_same_bits_alone_and_within_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.torch.small_decoder import small_decoder
    from tirgemm.torch import accelerate

    decoder = small_decoder(32, "cpu", torch.float32)
    for module in (decoder.layers, decoder.head):
        report = accelerate(module, rows=[5, Range(1, 64)], source=X86Kernels(), invariant=True)
        assert all(linear.replaced for linear in report.linears)
        assert all(gemm.invariant for gemm in report.gemms)
    monkeypatch.setattr(torch.nn.functional, "linear", None)
    x = decoder.prompts(5, count=12)
    logits = decoder(x)
    assert logits.shape == (12, 1, 32)
    for number in range(12):
        assert torch.equal(decoder(x[number : number + 1])[0], logits[number])
    assert torch.equal(decoder(x[3:7]), logits[3:7])
    assert torch.equal(decoder(x.flip(0)), logits.flip(0))


def test_a_layer_without_an_invariant_kernel_stays_pytorchs_and_is_listed(table: Any) -> None:
    from tirgemm.torch import Linear, accelerate

    source, layer = SampleSource(stored=[FREE]), torch.nn.Linear(19, 23)
    table.add(source.kernel(FREE, "tuned"))
    report = accelerate(layer, rows=Range(1, 64), source=source, policy="tuned", invariant=True)
    assert type(layer) is torch.nn.Linear
    assert str(report) == (
        "0 of 1 linears replaced; 1 problems\n(the model): left alone: no invariant kernel\n"
        f"    {INVARIANT}: no kernel: it was not tuned"
    )
    source.stored.add(INVARIANT)
    report = accelerate(layer, rows=Range(1, 64), source=source, policy="tuned", invariant=True)
    assert repr(layer) == "Linear(in_features=19, out_features=23, bias=True, invariant=True)"
    assert isinstance(layer, Linear)
    report.undo()
    assert layer.__dict__.keys() == torch.nn.Linear(1, 1).__dict__.keys()


def test_no_free_kernel_computes_an_invariant_call(
    table: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import Linear, linear

    source, layer = SampleSource(), Linear(19, 23, invariant=True)
    ran: list[str] = []

    def note(gemm: Gemm, _: Any) -> None:
        ran.append(str(gemm))

    for gemm in (FREE, INVARIANT):
        table.add(watch(source.kernel(gemm, "tuned"), partial(note, gemm), monkeypatch))
    x = torch.randn(5, 19)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with caplog.at_level(logging.WARNING, "tirgemm.torch"):
        for call in (layer, layer, lambda x: linear(x, layer.weight, layer.bias, "none", True), compiled):
            assert torch.equal(call(x), linear(x, layer.weight, layer.bias))
        assert layer(x[:0]).shape == (0, 23)
    assert ran == [str(INVARIANT), str(FREE)] * 4
    assert caplog.messages == []
    table.remove(source.made[1])
    with caplog.at_level(logging.WARNING, "tirgemm.torch"):
        for _ in range(2):
            assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    assert ran == [str(INVARIANT), str(FREE)] * 4
    (message,) = caplog.messages
    assert message == (
        "PyTorch computes 5x23x19:f32:nt:bias:invariant (no kernel), whose rows may have other bits in other batches"
    )


@pytest.mark.parametrize("prepack", [False, True])
def test_rows_have_their_bits_wherever_they_lie(prepack: bool, caplog: pytest.LogCaptureFixture) -> None:
    from tirgemm.torch import accelerate

    layer, source = torch.nn.Linear(19, 23), X86Kernels()
    accelerate(layer, rows=Range(1, 64), source=source, invariant=True, prepack=prepack)
    assert source.gemms == [INVARIANT]
    x = torch.randn(40, 19)
    whole = layer(x)
    assert layer.packed_bytes > 0 or not prepack
    with caplog.at_level(logging.WARNING, "tirgemm.torch"):
        assert torch.equal(layer(x[7:9]), whole[7:9]), "an address that no kernel reads"
        assert torch.equal(layer(x[::3]), whole[::3])
        assert torch.equal(layer(x.t().contiguous().t()), whole), "by columns"
        assert torch.equal(layer(x[4:5].expand(6, 19)), whole[4:5].expand(6, 23))
        assert torch.equal(layer(x[5]), whole[5])
    assert caplog.messages == []
