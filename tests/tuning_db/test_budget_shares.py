"""Shares of a batch's budget."""

from __future__ import annotations

import pytest

from tirgemm.tuning_db.queue.budget_shares import shares


def test_shares_add_up_and_leave_nobody_without() -> None:
    parts = shares(100, [0.0, 0.5, 1.5], 1.0)
    assert sum(parts) == pytest.approx(100)
    assert 1.0 < parts[0] < parts[1] < parts[2]
    assert shares(2, [0.1, 0.2], 3.0) == [3.0, 3.0], "the least, where there is no more"
