"""Fixtures of the tests of suite runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.bench.suite_run.fake_bench import SHAPES, FakeTuning
from tirgemm import Gemm
from tirgemm.bench.suite_file import Suite
from tirgemm.config import Knob, Space
from tirgemm.families import Rule


@pytest.fixture(autouse=True)
def tuning(monkeypatch: pytest.MonkeyPatch) -> type[FakeTuning]:
    monkeypatch.setattr("tirgemm.bench.suite_run.tuning_class", lambda _: FakeTuning)
    monkeypatch.setattr("tirgemm.tuning.set_tuning.tuning_class", lambda _: FakeTuning)
    monkeypatch.setattr(FakeTuning, "runs", [])
    return FakeTuning


@pytest.fixture
def suite() -> Suite:
    return Suite("tiny", "made up for this test", tuple(map(Gemm.parse, SHAPES)))


@pytest.fixture
def sample_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """The family of CONFIG and TUNED, whose only rule is against 8 rows."""
    space = Space("sample", (Knob("rows", (1, 2, 4, 8)),))
    rule = Rule("rows", lambda _gemm, config, _device: "8 are too many" if config["rows"] == 8 else None)
    family = SimpleNamespace(name="sample", space=lambda *_: space, rules=(rule,))
    monkeypatch.setattr(FakeTuning, "families", (family,), raising=False)
