"""What a forked child of the test process does: it has to end in time."""

from __future__ import annotations

import os
import pickle
import select
import signal
import traceback
from collections.abc import Callable
from typing import TypeVar

from tests.waiting import PATIENCE_S

Value = TypeVar("Value")


def in_forked_child(work: Callable[[], Value], patience_s: float = PATIENCE_S) -> Value:
    """What ``work`` returns in a forked child. Raises AssertionError where it raises, or does not return in time."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(receive)
            try:
                answer = pickle.dumps((work(), ""))
            except BaseException:
                answer = pickle.dumps((None, traceback.format_exc()))
            os.write(send, answer)
        finally:
            os._exit(0)
    os.close(send)
    try:
        assert select.select([receive], [], [], patience_s)[0], f"the forked child did not return in {patience_s:g} s"
        with os.fdopen(os.dup(receive), "rb") as pipe:
            value, error = pickle.loads(pipe.read())
    finally:
        os.close(receive)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert not error, error
    result: Value = value
    return result
