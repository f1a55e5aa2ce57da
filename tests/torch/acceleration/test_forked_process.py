"""``accelerate``, ``routed`` and layers in a forked process, whatever a thread of its parent was doing."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from tests.forked_child import in_forked_child
from tests.helpers.packing_kernel import packing_kernel
from tests.helpers.sample_source import SampleSource
from tests.torch.acceleration.two_linears import NARROW, WIDE, accelerated, model
from tests.torch.watched_kernel import watch
from tests.waiting import PATIENCE_S, until
from tirgemm.detect import device as detect_device

N, K = 23, 19
torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@contextmanager
def entered_by_a_thread(context: AbstractContextManager[object]) -> Iterator[None]:
    """While another thread is within ``context``."""
    inside, end = threading.Event(), threading.Event()

    def enter() -> None:
        with context:
            inside.set()
            end.wait(PATIENCE_S)

    thread = threading.Thread(target=enter)
    thread.start()
    try:
        assert inside.wait(PATIENCE_S)
        yield
    finally:
        end.set()
        thread.join()


def test_a_model_is_accelerated_while_the_parent_replaces_another() -> None:
    from tirgemm.torch.acceleration import one_at_a_time

    with entered_by_a_thread(one_at_a_time()):
        assert in_forked_child(lambda: len(accelerated(model(), SampleSource(stored=[WIDE, NARROW])).replaced)) == 2


def test_routed_problems_are_asked_for_while_the_parent_waits_for_others() -> None:
    from tirgemm.torch.routing import _Requests

    working, end = threading.Event(), threading.Event()

    class SlowSource(SampleSource):
        def prepare(self, *arguments: Any) -> Any:
            working.set()
            end.wait(PATIENCE_S)
            return super().prepare(*arguments)

    source, cpu = SlowSource(fails=True), detect_device("cpu")
    requests = _Requests(source, "default", False, {})
    requests.ask(WIDE, cpu)
    assert working.wait(PATIENCE_S)

    def child() -> list[Any]:
        end.set()
        requests.ask(NARROW, cpu)
        until(lambda: bool(source.groups))
        return list(source.asked)

    try:
        assert in_forked_child(child) == [NARROW]
    finally:
        end.set()
    until(lambda: source.asked == [WIDE])


def packed_by(made: Any) -> Any:
    from tirgemm.torch.packed_weight import PACKED_WEIGHTS

    return PACKED_WEIGHTS._known[id(made.weight)][1]


def holder(name: str) -> Callable[[Any], Any]:
    """Gives the object of that name in ``tirgemm.torch``, whatever the layer."""
    module, _, variable = name.partition(".")
    return lambda _: getattr(importlib.import_module(f"tirgemm.torch.{module}"), variable)


@pytest.mark.parametrize(
    "held",
    [
        holder("kernel_table.TABLE"),
        holder("kernel_table.DEPENDENT_TABLE"),
        holder("prepared_call._CHOICES"),
        holder("served_calls.SERVED"),
        holder("packed_weight.PACKED_WEIGHTS"),
        packed_by,
    ],
    ids=["kernels", "kernels for dependent launches", "choices", "served calls", "packed weights", "a packed weight"],
)
def test_layers_compute_while_a_thread_of_the_parent_has_a_lock(held: Callable[[Any], Any], table: Any) -> None:
    from tirgemm.torch import Linear, linear
    from tirgemm.torch.kernel_table import DEPENDENT_TABLE

    made, x = Linear(K, N, bias=False, prepack=True), torch.randint(-3, 4, (4, K)).float()
    made.weight.copy_(torch.randint(-3, 4, (N, K)))
    wanted = torch.nn.functional.linear(x, made.weight)
    table.add(packing_kernel(f"1..8x{N}x{K}:f32:nt"))
    assert torch.equal(made(x), wanted)

    def child() -> bool:
        right = [torch.equal(made(x), wanted), torch.equal(linear(x, made.weight), wanted)]
        for kernels in (table, DEPENDENT_TABLE):
            kernels.add(packing_kernel(f"1..9x{N}x{K}:f32:nt"))
        made.weight.mul_(2)
        right += [torch.equal(made(x), 2 * wanted), torch.equal(linear(x, made.weight), 2 * wanted)]
        another = Linear(K, N, bias=False, prepack=True)
        another.weight.copy_(made.weight)
        return all([*right, torch.equal(another(x), 2 * wanted)])

    with entered_by_a_thread(held(made)._lock):
        assert in_forked_child(child)


def test_a_kernel_that_the_parent_was_adding_serves_calls_of_the_forked_process(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import linear

    x, weight, ran = torch.randn(4, K), torch.randn(N, K), []
    added = watch(packing_kernel(f"1..8x{N}x{K}:f32:nt"), lambda given: ran.append(len(given)), monkeypatch)

    def call() -> list[int]:
        linear(x, weight)
        linear(x, weight)
        return ran

    assert call() == []
    told, end = threading.Event(), threading.Event()

    def pause() -> None:
        told.set()
        end.wait(PATIENCE_S)

    monkeypatch.setattr(table, "_listeners", [pause, *table._listeners])
    thread = threading.Thread(target=table.add, args=[added])
    thread.start()
    try:
        assert told.wait(PATIENCE_S)
        assert in_forked_child(call) == [4, 4]
    finally:
        end.set()
        thread.join()
