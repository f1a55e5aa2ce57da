"""Import of PyTorch into a measuring process, in seconds, when a baseline first asks for it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable
from tirgemm.tuning.process.child_rpc import allow_torch

_TOLD_S = 0.2


def imported_torch(alive: Callable[[], None]) -> Any:
    """The module ``torch``; ``alive`` is told while it is imported, the first time. Raises BaselineUnavailable."""
    allow_torch()
    failed: list[Exception] = []

    def work() -> None:
        try:
            importlib.import_module("torch")
        except Exception as error:  # a broken installation raises OSError among others
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_TOLD_S)
        alive()
    if failed:
        absent = isinstance(failed[0], ModuleNotFoundError) and failed[0].name == "torch"
        raise BaselineUnavailable(
            "PyTorch is not installed" if absent else f"PyTorch does not import: {failed[0]}"
        ) from failed[0]
    return importlib.import_module("torch")
