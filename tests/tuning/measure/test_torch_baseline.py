"""PyTorch's pinned settings, and the padded call beside the plain one, on a CPU's PyTorch and on a stub of one."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tirgemm.gemm import Gemm
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable
from tirgemm.tuning.measure.baselines.torch_baseline import PINNED, PLAIN, TorchBaseline, careful_call, odd_sizes, pin
from tirgemm.tuning.measure.baselines.torch_compiled_baseline import TorchCompiledBaseline
from tirgemm.tuning.measure.baselines.tuned_baseline import FastestOption, Refused


class StubTorch(SimpleNamespace):
    """As much of PyTorch as settings and candidates need; ``deaf`` settings keep their value."""

    def __init__(self, deaf: str = "") -> None:
        class Matmul:
            def __setattr__(self, name: str, value: Any) -> None:
                if name != deaf:
                    object.__setattr__(self, name, value)

        matmul = Matmul()
        for name in ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
            object.__setattr__(matmul, name, None)
        cuda = SimpleNamespace(is_available=lambda: True, ExternalStream=lambda *_, **__: None, stream=nullcontext)
        super().__init__(backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul)), cuda=cuda, __version__="9.9")
        self.precision = "medium"

    def set_float32_matmul_precision(self, value: str) -> None:
        self.precision = value

    def get_float32_matmul_precision(self) -> str:
        return self.precision


def test_the_settings_are_pinned_whatever_they_were() -> None:
    torch = StubTorch()
    pin(torch)
    assert torch.precision == "highest"
    assert {name: getattr(torch.backends.cuda.matmul, name) for name in PINNED if name.startswith("allow")} == {
        name: value for name, value in PINNED.items() if name.startswith("allow")
    }


@pytest.mark.parametrize("deaf", ["allow_tf32", "allow_bf16_reduced_precision_reduction"])
def test_a_pytorch_that_keeps_its_own_settings_is_absent(deaf: str) -> None:
    with pytest.raises(BaselineUnavailable, match=f"PyTorch 9.9 does not take its settings.*'{deaf}': None"):
        pin(StubTorch(deaf))


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ("4096x4096x4096:f16:nt", ""),
        ("1023x1024x1024:f16:nt", ""),
        ("1024x1023x1024:f16:nt", "n"),
        ("1024x1024x1027:f16:nt", "k"),
        ("1023x1024x1024:f16:tn", "m"),
        ("1023x1021x1027:f16:nt", "kn"),
        ("1024x1020x1024:f32:nn", ""),
        ("1024x1020x1024:f16:nn", "n"),
        ("64x64x61:f16:nt:lda=64", "k"),
        ("64x64x61:f16:nt:lda=64:ldb=64", ""),
        ("64x64x64:f16:nn:ldd=65", ""),
        ("1..63x64x64:f16:tn", "m"),
    ],
)
def test_odd_sizes_are_those_whose_rows_a_user_would_pad(text: str, odd: str) -> None:
    assert "".join(sorted(odd_sizes(Gemm.parse(text)))) == odd


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("64x64x64:f16:nt", None),
        ("64x64x64:f16:nt:ldb=72", None),
        ("64x64x61:f16:nt:lda=64:ldb=64", None),
        ("64x64x64:f32:nt:lda=68", None),
        ("64x63x64:f16:nt", "d.copy_(torch.matmul(a, F.pad(b))[..., :m, :n])"),
        ("64x64x61:f16:nt", "torch.matmul(F.pad(a), F.pad(b), out=d)"),
        ("64x64x61:f16:nt:lda=64", "torch.matmul(F.pad(a), F.pad(b), out=d)"),
        ("63x64x61:f16:tt", "d.copy_(torch.matmul(F.pad(a), F.pad(b))[..., :m, :n])"),
        ("64x64x64:f16:nt:lda=65", "torch.matmul(a.clone(), b, out=d)"),
        ("64x64x64:f16:nn:ldb=66:ldd=68", "d.copy_(torch.matmul(a, b.clone()))"),
        ("64x64x64:f16:nt:align=8", "d.copy_(torch.matmul(a.clone(), b.clone()))"),
        ("64x64x64:f16:nt:batch=2:stride_a=4097", "torch.matmul(a.clone(), b, out=d)"),
        ("64x64x61:f16:nt:lda=64:ldb=64:align=2", "d.copy_(torch.matmul(F.pad(a), F.pad(b)))"),
        ("64x60x64:f16:nt:ldd=64:align=4", "d.copy_(torch.matmul(a.clone(), F.pad(b))[..., :m, :n])"),
    ],
)
def test_a_careful_user_aligns_what_is_not(text: str, call: str | None) -> None:
    assert careful_call(Gemm.parse(text)) == call


def test_the_gpus_candidates_are_the_plain_call_and_of_unaligned_rows_the_careful_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", StubTorch())

    def labels(text: str) -> list[dict[str, Any]]:
        return [candidate.label for candidate in TorchBaseline(Gemm.parse(text), 0, 0).candidates([])]

    assert labels("64x64x64:f16:nt") == [{}], "the one call needs no choice"
    assert labels("64x63x64:f16:nt") == [{"call": PLAIN}, {"call": "d.copy_(torch.matmul(a, F.pad(b))[..., :m, :n])"}]


def test_only_an_epilogue_is_compiled_and_what_fails_to_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no compiler")

    torch = StubTorch()
    torch.compile, torch.matmul, torch.from_dlpack = lambda *_, **__: broken, lambda *_, **__: None, lambda view: view
    torch.compiler = SimpleNamespace(reset=lambda: None)
    torch.relu = torch.nn = SimpleNamespace(functional=SimpleNamespace(gelu=None, silu=None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(BaselineUnavailable, match="nothing to compile"):
        TorchCompiledBaseline(Gemm.parse("64x64x64:f16:nn"), 0, 0)
    views: Any = {"a": 1, "b": 2, "d": 3, "bias": 4}
    (only,) = TorchCompiledBaseline(Gemm.parse("64x64x64:f16:nn:bias"), 0, 0).candidates([views])
    with pytest.raises(Refused, match=r"torch\.compile failed: RuntimeError: no compiler"):
        only.call(0)


def test_the_report_of_a_choice_names_both_times() -> None:
    padded = "torch.matmul(F.pad(a), F.pad(b), out=d)"
    labels = [{"call": call} for call in (PLAIN, padded)]
    actual = FastestOption(1, {0: 20.0, 1: 11.0}, {0: 19.0, 1: 10.0}).to_json(labels)
    assert [label["call"] for label in actual["labels"]] == [PLAIN, padded]
    assert (actual["label"], actual["finals_us"]) == ({"call": padded}, {"0": 19.0, "1": 10.0})
    many = [{"number": i} for i in range(40)]
    assert "labels" not in FastestOption(0, {}, {}).to_json(many)
