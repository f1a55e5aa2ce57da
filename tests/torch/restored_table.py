"""The table of kernels of ``tirgemm.torch``, as it was before once a test is over."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def restored_table() -> Iterator[Any]:
    """The table, with gradients off and PyTorch on one thread."""
    import torch

    from tirgemm.torch.kernel_table import TABLE

    torch.set_num_threads(1)
    before = copy.copy(TABLE._entries)
    with torch.no_grad():
        yield TABLE
    TABLE._entries = before
    TABLE._tell()
