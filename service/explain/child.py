"""The process of a service that explains, compiles and disassembles: ``python -m service.explain.child``. Calls the
functions that it is sent, and keeps TVM once it was imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tirgemm.errors import AnalysisFailed, TirgemmError
from tirgemm.tuning.process.child_rpc import Channel, serve, without_torch

if TYPE_CHECKING:
    from tirgemm.service.explain.stored_kernel import StoredKernelInput

# A function of a module, and what it is called with.
RemoteCall = tuple[Callable[..., Any], tuple[Any, ...]]


def explained_page(stored: StoredKernelInput) -> tuple[dict[str, Any], str]:
    """The explanation of a stored kernel as a document and as a page. Raises what ``explain`` raises, AnalysisFailed
    for a fault here."""
    from tirgemm.service.explain.gather import explained
    from tirgemm.service.explain.page import page

    try:
        report = explained(stored)
        return report.to_json(), page(report)
    except TirgemmError:
        raise
    except Exception as error:  # whatever the analysis stumbles over: of which kernel is said
        raise AnalysisFailed(f"{stored.record.config}: {type(error).__name__}: {error}"[:2000]) from error


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
