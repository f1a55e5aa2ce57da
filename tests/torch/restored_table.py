"""The table of kernels of ``tirgemm.torch``, as it was before once a test is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.waiting import PATIENCE_S


@contextmanager
def restored_table() -> Iterator[Any]:
    """The table, with gradients off and PyTorch on one thread; that for dependent launches is restored, too.

    What was still being made is there before that: kernels that come later would be there for the tests after this one.
    """
    import torch

    from tirgemm.torch.kernel_table import DEPENDENT_TABLE, TABLE

    torch.set_num_threads(1)
    before = {table: table.copy() for table in (TABLE, DEPENDENT_TABLE)}
    with torch.no_grad():
        yield TABLE
    _finish_preparations()
    for table, kept in before.items():
        table._entries, table._excluded = kept._entries, kept._excluded
        table.lost_in_graphs.clear()
        table._tell()


def _finish_preparations() -> None:
    """What asks for routed problems starts threads that prepare, so that it ends first."""
    for name in ("tirgemm-routed", "tirgemm-prepare"):
        for thread in threading.enumerate():
            if thread.name == name:
                thread.join(PATIENCE_S)
                assert not thread.is_alive(), f"{name} is still at work"
