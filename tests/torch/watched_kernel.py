"""Notes of each call of a kernel, on whichever way a call of ``tirgemm.torch`` reaches the launcher, and of each
packing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.observed_calls import observed
from tirgemm.artifact import Kernel, tensor_calls


def watch(kernel: Kernel, note: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """``kernel``, of whose calls ``note`` is told the first tensor."""
    real, new = kernel.raw, tensor_calls.call_new

    def told(first: Any, *_: Any) -> None:
        note(first)

    def call_new(functions: Any, *how: Any, **more: Any) -> Any:
        made = new(functions, *how, **more)
        return observed(made, told) if made is not None and functions is kernel.functions else made

    kernel.raw = observed(real, told)
    monkeypatch.setattr(tensor_calls, "call_new", call_new)
    return kernel


def noted_packs(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The addresses of the operands that ``kernel`` packs from now on."""
    seen: list[int] = []
    real = kernel.functions

    def pack(b: Any, data: Any, member: int) -> None:
        seen.append(b.data_ptr())
        real.pack(b, data, member)

    monkeypatch.setattr(kernel, "functions", real._replace(pack=pack))
    return seen
