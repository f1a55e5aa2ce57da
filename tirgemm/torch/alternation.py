"""Times of calls that take turns, and calls captured in CUDA graphs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

_WARM_UP_CALLS = 3


def alternating(
    ways: Mapping[str, Callable[[], Any]], turns: int, turn_s: float, synchronise: Callable[[], None]
) -> dict[str, list[float]]:
    """Milliseconds a call, by way, of ``turns`` turns of about ``turn_s`` each, whose order changes every round."""
    counts = {way: max(1, math.ceil(turn_s / _turn(call, _warmed(call), synchronise))) for way, call in ways.items()}
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(-1, turns):  # one to warm up
        for way in sorted(ways, reverse=turn % 2 == 1):
            took = _turn(ways[way], counts[way], synchronise)
            if turn >= 0:
                samples[way].append(1e3 * took / counts[way])
    return samples


def captured(call: Callable[[], Any]) -> tuple[Any, Any]:
    """A CUDA graph of ``call``, and the tensor that its replays write."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # what other threads do is no part of it
        output = call()
    graph.replay()
    return graph, output


def ended() -> None:
    """A CPU's calls have ended when they return."""


def _warmed(call: Callable[[], Any]) -> int:
    for _ in range(_WARM_UP_CALLS):
        call()
    return 1


def _turn(call: Callable[[], Any], count: int, synchronise: Callable[[], None]) -> float:
    """Seconds of so many calls."""
    synchronise()
    began = time.perf_counter()
    for _ in range(count):
        call()
    synchronise()
    return time.perf_counter() - began
