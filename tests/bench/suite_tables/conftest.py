"""Fixtures of the tests of tables over suites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.suite_tables.made_up_results import GPU, SUITES, contest
from tests.bench.test_results import COMMIT
from tirgemm import Gemm
from tirgemm.bench.results import ResultsFile, environment
from tirgemm.gemm import REGIMES
from tirgemm.tuning.measure.baselines.torch_baseline import PINNED
from tirgemm.tuning.records import SampleSet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A device's results: every suite in both regimes, the isolated ones compressed."""
    for regime, ending in zip(REGIMES, ("json", "json.gz"), strict=True):
        for name, gemms in SUITES.items():
            (tmp_path / f"{name}.json").write_text(json.dumps({"name": name, "source": "made up", "gemms": gemms}))
            path = tmp_path / "results" / "gpu" / f"{name}.{regime}.{ending}"
            file = ResultsFile(
                path, name, regime, environment(GPU, None, COMMIT) | {"torch_settings": PINNED}, resume=False
            )
            read = file.add_stream(SampleSet((250.0,) * 3, "selection", {}, {"bytes": 10**9, "at": "now"}))
            for text in gemms:
                file.put(*contest(text, read, load="repack" if "1025" in text else "tma"))
            file.arrange([Gemm.parse(text) for text in gemms], ["default", "tuned"])
    (tmp_path / "odd.json").write_text(
        json.dumps({"name": "odd", "source": "x", "gemms": SUITES["odd"], "groups": {"odd m": SUITES["odd"][:1]}})
    )
    return tmp_path / "results" / "gpu"
