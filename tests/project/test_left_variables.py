"""Variables that a test may leave in the environment: those that libraries set for good, and no others."""

from __future__ import annotations

import os

import pytest

from tests.helpers.library_variables import own_variables


@pytest.mark.parametrize(
    ("name", "may_stay"),
    [("KMP_INIT_AT_FORK", True), ("KMP_DUPLICATE_LIB_OK", True), ("KMP_SETTINGS", False), ("TIRGEMM_LOCK_DIR", False)],
)
def test_only_variables_that_libraries_set_may_stay(name: str, may_stay: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = own_variables()
    monkeypatch.setenv(name, os.environ.get(name, "") + "x")
    assert (own_variables() == before) is may_stay
