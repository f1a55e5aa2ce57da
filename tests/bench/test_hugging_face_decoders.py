"""Hugging Face's decoders as they are raced: causal, without a read of the device on the host, on shared weights."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers, which no extra brings, is not installed")
pytestmark = pytest.mark.torch

from benchmarks.models.hugging_face import TINY_SHAPES, UNMASKED, hugging_face_decoder  # noqa: E402

READS = {"aten._local_scalar_dense.default", "aten.nonzero.default", "aten.is_nonzero.default", "aten.equal.default"}


def called_operators(names: set[str]) -> Any:
    """A mode that adds the names of the operators that run within it."""

    def torch_dispatch(_: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        names.add(str(function))
        return function(*args, **(kwargs or {}))

    mode = torch.utils._python_dispatch.TorchDispatchMode
    return type("CalledOperators", (mode,), {"__torch_dispatch__": torch_dispatch})()


@pytest.fixture(params=[*TINY_SHAPES])
def decoder(request: pytest.FixtureRequest) -> Any:
    with torch.no_grad():
        yield hugging_face_decoder(request.param, "cpu", torch.float32)


def test_a_call_can_be_captured_and_is_causal(decoder: Any) -> None:
    x = decoder.prompts(7, count=2)
    names: set[str] = set()
    with called_operators(names):
        result = decoder(x)
    assert not names & READS, "a CUDA graph cannot capture a read on the host"
    assert any("scaled_dot_product" in name for name in names)
    if decoder.vocabulary:
        config = decoder.model.config
        assert (config._attn_implementation, result.shape) == (UNMASKED, (2, 1, decoder.vocabulary))
        config._attn_implementation = "eager"  # with a mask
        expected = decoder.model(input_ids=x).logits[:, -1:]
    else:
        expected = torch.cat([decoder(x[:, :tokens])[:, -1:] for tokens in range(1, 8)], dim=1)
    assert torch.allclose(result, expected, atol=1e-6)


def test_a_twin_shares_weights_and_a_cast_has_its_own(decoder: Any) -> None:
    twin, exact = decoder.twin(), decoder.cast(torch.float64)
    assert all(one is other for one, other in zip(decoder.parameters(), twin.parameters(), strict=True))
    assert twin.layers is not decoder.layers
    assert {parameter.dtype for parameter in exact.parameters()} == {torch.float64}
    assert {parameter.dtype for parameter in decoder.parameters()} == {torch.float32}
    assert not any(parameter.requires_grad for parameter in [*decoder.parameters(), *exact.parameters()])
    x = decoder.prompts(3)
    assert torch.equal(twin(x), decoder(x))
    assert 0 < (exact(x) - decoder(x)).abs().max() < 1e-5
