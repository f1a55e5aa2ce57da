"""The process of a service that explains, compiles and disassembles: ``python -m service.explain.child``. Calls the
functions that it is sent, and keeps TVM once it was imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tirgemm.errors import AnalysisFailed, TirgemmError
from tirgemm.tuning.process.child_rpc import Channel, serve, without_torch

# A function of a module, and what it is called with.
RemoteCall = tuple[Callable[..., Any], tuple[Any, ...]]


def _prepare(channel: Channel, arguments: list[str]) -> Callable[[RemoteCall], Any]:
    del arguments
    without_torch()

    def handle(call: RemoteCall) -> Any:
        channel.alive()
        function, values = call
        try:
            return function(*values)
        except TirgemmError:
            raise
        except Exception as error:  # a fault here must not end the process without a word
            raise AnalysisFailed(f"{type(error).__name__}: {error}"[:2000]) from error

    return handle


if __name__ == "__main__":
    serve(_prepare)
