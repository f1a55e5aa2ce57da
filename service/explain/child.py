"""The explaining process of a service: ``python -m service.explain.child``. Imports TVM once, then explains what it is
sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tirgemm.errors import AnalysisFailed, TirgemmError
from tirgemm.tuning.process.child_rpc import Channel, serve, without_torch


def _prepare(channel: Channel, arguments: list[str]) -> Callable[[Any], tuple[dict[str, Any], str]]:
    del arguments
    without_torch()
    from tirgemm.service.explain.gather import explained
    from tirgemm.service.explain.page import page

    def handle(stored: Any) -> tuple[dict[str, Any], str]:
        channel.alive()
        try:
            report = explained(stored)
            return report.to_json(), page(report)
        except TirgemmError:
            raise
        except Exception as error:  # a fault here must not end the process without a word
            raise AnalysisFailed(f"{stored.record.config}: {type(error).__name__}: {error}"[:2000]) from error

    return handle


if __name__ == "__main__":
    serve(_prepare)
