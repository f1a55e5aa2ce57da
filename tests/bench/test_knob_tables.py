"""The table of what the fastest configs of a search have, on made-up measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import knob_tables
from tirgemm import Config, Device, Gemm
from tirgemm.config import Value
from tirgemm.gemm import Regime
from tirgemm.tuning.records import Candidate, SampleSet, Status
from tirgemm.tuning_db import shipped, transfer
from tirgemm.tuning_db.data_folder import open_database
from tirgemm.tuning_db.store import SqlStore

GPU = Device("cuda", "sm_90a", "NVIDIA H200", 132, 2**37)


def candidates_of(text: str, regime: Regime, *times: tuple[dict[str, Value], float | None]) -> list[Candidate]:
    """Candidates of a problem: microseconds by knobs, None for what was wrong."""
    return [
        Candidate(
            Gemm.parse(text),
            GPU.key,
            regime,
            Config("wgmma", tuple({"swap": 0, "split": 1, "reduction": "cluster", **knobs}.items())),
            Status.WRONG if us is None else Status.MEASURED,
            sample_sets=() if us is None else (SampleSet((us,)),),
        )
        for knobs, us in times
    ]


NARROW = candidates_of(
    "16x575x7168:f16:nt",
    "sustained",
    ({"swap": 1, "split": 2}, 4.0),
    ({"swap": 1}, 5.0),
    ({"swap": 1, "split": 4}, 6.0),
    ({"split": 2}, 8.0),
    ({"split": 2, "reduction": "kernel"}, 4.4),
    ({"split": 4}, None),
)
TALL = candidates_of(
    "4097x575x7168:f16:nt",
    "sustained",
    ({}, 10.0),
    ({"swap": 1}, 11.0),
    ({"split": 2}, 12.0),
    ({"split": 2, "reduction": "kernel"}, 13.0),
    ({"split": 3}, 20.0),
)


def lines(text: str) -> dict[tuple[str, str], list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {(row[0], row[1]): row[2:] for row in rows}


def test_shapes_count_for_the_choices_of_their_fastest_config() -> None:
    table = lines(knob_tables.tables([*NARROW, *TALL]))
    assert table["swap", "1"] == ["1", "", "", "", "+10.0%", "+10.0%"]
    assert table["swap", "0"] == ["", "", "", "1", "+10.0%", "+10.0%"]
    assert table["split", "2"] == ["1", "", "", "", "+25.0%", "+25.0%"]
    assert ("split", "4") not in table


def test_how_parts_are_added_counts_only_where_there_are_parts() -> None:
    table = lines(knob_tables.tables([*NARROW, *TALL]))
    assert table["reduction", "cluster"] == ["1", "", "", "", "+10.0%", "+10.0%"]


def test_shapes_of_too_few_configs_and_regimes_without_shapes_are_left_out() -> None:
    few = candidates_of("1x2x3:f16:nt", "isolated", ({}, 1.0), ({"swap": 1}, 2.0))
    assert knob_tables.tables(few) == ""
    assert knob_tables.tables([*NARROW, *few]).startswith("sustained; 1 shapes, 5 configs")


def test_the_shipped_records_of_a_folders_device_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    results = tmp_path / "results" / "some-gpu"
    assert knob_tables.knobs(results, tmp_path) == ""
    with open_database(tmp_path, None) as db:
        for candidate in (*NARROW, *TALL):
            SqlStore(db).add_candidate(candidate)
        transfer.export_records(db, tmp_path / "some-gpu.jsonl.gz")
    assert knob_tables.knobs(results, tmp_path) == knob_tables.tables([*NARROW, *TALL])


def test_a_value_is_worth_what_the_shape_that_needs_it_most_loses_without_it() -> None:
    shapes = [times for _, times in knob_tables.times_of([*NARROW, *TALL], "sustained")]
    rows = {name: cells for _, name, *cells in knob_tables.worth("wgmma", shapes)}
    assert rows["swap"] == ["0: 10.0%, 1: 10.0%", ""]
    assert rows["split"] == ["1: 20.0%, 2: 25.0%", "3, 4"]
    assert rows["reduction"] == ["cluster: 10.0%", "kernel"]
    assert list(knob_tables.worth("mma", shapes)) == []
