"""The table of kernels of ``tirgemm.torch``, as it was before once a test is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def restored_table() -> Iterator[Any]:
    """The table, with gradients off and PyTorch on one thread; that for dependent launches is restored, too."""
    import torch

    from tirgemm.torch.kernel_table import DEPENDENT_TABLE, TABLE

    torch.set_num_threads(1)
    before = {table: table.copy() for table in (TABLE, DEPENDENT_TABLE)}
    with torch.no_grad():
        yield TABLE
    for table, kept in before.items():
        table._entries, table._excluded = kept._entries, kept._excluded
        table.lost_in_graphs.clear()
        table._tell()
