"""The GPU's baseline ``torch.compile``: ``torch.matmul``, then scaling, C, bias and activation as one kernel that
PyTorch compiles, beside problems that have any of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tirgemm.gemm import Gemm
from tirgemm.tuning.driver.tensors import View
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable
from tirgemm.tuning.measure.baselines.torch_baseline import TorchBaseline, activation
from tirgemm.tuning.measure.baselines.tuned_baseline import BaselineOption, Call, Refused


class TorchCompiledBaseline(TorchBaseline):
    """``torch.matmul(a, b, out=d)`` and a compiled epilogue of ``d``. Raises BaselineUnavailable where a problem has no
    epilogue."""

    def __init__(self, gemm: Gemm, ordinal: int, stream: int) -> None:
        if not (gemm.alpha or gemm.beta or gemm.bias or gemm.act != "none"):
            raise BaselineUnavailable("without alpha, beta, bias and activation PyTorch has nothing to compile")
        super().__init__(gemm, ordinal, stream)

    def candidates(self, sets: list[dict[str, View]]) -> list[BaselineOption]:
        """The one call, which is compiled when it is first used."""
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else it forks more processes for one kernel
        finish = compiled_epilogue(self._torch, self._gemm)

        def call(i: int) -> Call:
            run = self.prepared(sets[i], lambda _torch, _gemm, **tensors: matmul_and(self._torch, finish, **tensors))
            try:
                run()
            except Exception as error:  # whatever Inductor, Triton or a compiler raises
                raise Refused(f"torch.compile failed: {type(error).__name__}: {error}"[:300]) from error
            return run

        return [BaselineOption({}, call)]


def compiled_epilogue(torch: Any, gemm: Gemm, **options: Any) -> Callable[[Any, Any, Any], None]:
    """``epilogue``, compiled when it is first called, with ``options`` of ``torch.compile``; what was compiled for
    other problems is forgotten.

    Of one function PyTorch keeps eight compiled forms (``recompile_limit``); it would run those of more problems
    uncompiled, and only warn of it.
    """
    torch.compiler.reset()
    finish: Callable[[Any, Any, Any], None] = torch.compile(
        epilogue(torch, gemm), dynamic=False, fullgraph=True, **options
    )
    return finish


def epilogue(torch: Any, gemm: Gemm) -> Callable[[Any, Any, Any], None]:
    """A function of D, C and bias that writes D: scaling, C, bias and activation, as one expression."""
    act = activation(torch, gemm.act)

    def finish(d: Any, c: Any, bias: Any) -> None:
        value = d * 1.0 if gemm.alpha else d
        if c is not None:
            value = value + 1.0 * c
        if bias is not None:
            value = value + bias
        d.copy_(value if act is None else act(value))

    return finish


def matmul_and(
    torch: Any, finish: Callable[[Any, Any, Any], None], a: Any, b: Any, d: Any, c: Any = None, bias: Any = None
) -> Call:
    """``torch.matmul`` into ``d``, then ``finish``."""

    def run() -> None:
        torch.matmul(a, b, out=d)
        finish(d, c, bias)

    return run
