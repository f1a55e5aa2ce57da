"""``routed`` blocks of generators: steps in other contexts, and ends out of turn."""

from __future__ import annotations

import contextvars
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.helpers.artifact_samples import kernel
from tests.torch.restored_table import restored_table

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

M, N, K = 7, 29, 31
SERVED = {("mm", "served"): 1}


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    with restored_table() as kept:
        kept.add(kernel(f"{M}x{N}x{K}:f32:nn"))
        yield


@pytest.fixture
def a() -> Any:
    return torch.randint(-3, 4, (M, K)).float()


@pytest.fixture
def b() -> Any:
    return torch.randint(-3, 4, (K, N)).float()


def products(a: Any, b: Any) -> Generator[Any]:
    """Three steps that multiply within one block, each of which gives its counts."""
    from tirgemm.torch import routed

    with routed("default") as calls:
        for _ in range(3):
            assert torch.equal(a @ b, (a[:, :, None] * b[None]).sum(1))
            yield calls


def test_steps_in_other_contexts_are_as_without_and_the_first_is_routed(a: Any, b: Any) -> None:
    steps = products(a, b)
    seen: list[Any] = [contextvars.copy_context().run(next, steps, None) for _ in range(4)]
    assert seen[3] is None, "it ended without an error"
    assert dict(seen[0].counts) == SERVED


def test_a_generator_that_is_closed_in_another_context_is_over(a: Any, b: Any) -> None:
    steps, begun = products(a, b), contextvars.copy_context()
    calls = begun.run(next, steps)
    steps.close()
    begun.run(torch.mm, a, b)
    assert dict(calls.counts) == SERVED


def test_blocks_that_end_out_of_turn_are_over(a: Any, b: Any) -> None:
    def run() -> None:
        first, second = products(a, b), products(a, b)
        calls = [next(first), next(second)]
        first.close()
        second.close()
        torch.mm(a, b)
        assert [dict(each.counts) for each in calls] == [SERVED] * 2

    contextvars.copy_context().run(run)
