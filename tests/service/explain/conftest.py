"""Fixtures of the tests of explanations."""

from __future__ import annotations

import pytest

from tests.service.explain.explained_kernels import explained
from tirgemm.analysis.explanation import Explanation
from tirgemm.analysis.roofline import MeasuredTime, Measurements


@pytest.fixture(scope="module")
def compiled() -> Explanation:
    return explained(measured=Measurements(MeasuredTime(4.0, "by hand")))
