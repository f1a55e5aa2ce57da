"""``accelerate`` and ``routed`` in a forked process, whatever a thread of its parent was doing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.forked_child import in_forked_child
from tests.helpers.sample_source import SampleSource
from tests.torch.acceleration.two_linears import NARROW, WIDE, accelerated, model
from tests.waiting import PATIENCE_S, until
from tirgemm.detect import device as detect_device

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def test_a_model_is_accelerated_while_the_parent_replaces_another() -> None:
    from tirgemm.torch.acceleration import one_at_a_time

    inside, end = threading.Event(), threading.Event()

    def replace() -> None:
        with one_at_a_time():
            inside.set()
            end.wait(PATIENCE_S)

    thread = threading.Thread(target=replace)
    thread.start()
    assert inside.wait(PATIENCE_S)
    try:
        assert in_forked_child(lambda: len(accelerated(model(), SampleSource(stored=[WIDE, NARROW])).replaced)) == 2
    finally:
        end.set()
        thread.join()


def test_routed_problems_are_asked_for_while_the_parent_waits_for_others() -> None:
    from tirgemm.torch.routing import _Requests

    working, end = threading.Event(), threading.Event()

    class SlowSource(SampleSource):
        def prepare(self, *arguments: Any) -> Any:
            working.set()
            end.wait(PATIENCE_S)
            return super().prepare(*arguments)

    source, cpu = SlowSource(fails=True), detect_device("cpu")
    requests = _Requests(source, "default", wait=False)
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
