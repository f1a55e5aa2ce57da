"""Timings of kernels: stored documents come back as they were written, whatever version wrote them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tirgemm.timings import (
    BaselineTime,
    ConfigOrigin,
    NotTimed,
    SearchSummary,
    SelectionReason,
    StreamTiming,
    Timing,
    Timings,
)

AT = "2026-08-01T12:00:00+00:00"
# As an earlier version stored them: of a tuned kernel on a GPU, of a kernel of shipped records, of a default, of a
# build that nobody ran, and of a search that did not say yet how it ended.
TUNED = """{"sustained": {"median_us": 10.25, "samples": 201,
 "baselines": {"cublaslt_best": {"median_us": 9.5, "ratio": 0.927}, "default": {"median_us": 10.25, "ratio": 1.0}},
 "conditions": {"at": "2026-08-01T12:00:00+00:00", "clock_mhz": 1980, "absent": {"triton": "not installed"}}},
 "default": {"config": "wgmma(tile_m=128)"}, "selection": {"reason": "the default stays", "ratio_low": 1.0},
 "search": {"trials": 32, "pruned": {"waves": 41}, "statuses": {"measured": 30, "wrong": 2}, "ended": "trials",
 "seconds": 120.0, "families": ["wgmma"]},
 "stream": {"bytes": 1000000, "median_us": 0.25, "samples": 20, "read_gbps": 4000.0, "at": "2026-08-01T12:00:00+00:00"},
 "isolated": {"error": "MeasurementFailed: no"}}"""
SHIPPED = """{"isolated": {"median_us": 35, "samples": 75, "baselines": {}, "conditions": {}},
 "default": {"config": "wgmma(tile_m=64)"}, "selection": {"reason": "the fastest of 6 shipped candidates"},
 "search": {"trials": 0, "pruned": {}, "statuses": {}, "ended": "shipped", "seconds": 120.0,
 "shipped": {"device": "cuda:sm_90a:nvidia-h200:132:aa", "environment": {"driver": "570", "tvm": "0.27"},
 "same": true}},
 "sustained": {"error": "not measured: the config was shipped, and nothing was searched here"}}"""
DEFAULT = """{"sustained": {"median_us": 12.5, "samples": 20, "baselines": {}, "conditions": {}},
 "default": {"config": "x86(a=1)"}}"""
UNVERIFIED = '{"predicted_us": 12.0}'
OLDER = """{"sustained": {"median_us": 12.5, "baselines": {}, "conditions": {}},
 "search": {"trials": 4, "pruned": {}, "statuses": {"measured": 4}}}"""
VALUES = {
    TUNED: Timings(
        {
            "sustained": Timing(
                10.25,
                201,
                {"cublaslt_best": BaselineTime(9.5, 0.927), "default": BaselineTime(10.25, 1.0)},
                {"at": AT, "clock_mhz": 1980, "absent": {"triton": "not installed"}},
            ),
            "isolated": NotTimed("MeasurementFailed: no"),
        },
        "wgmma(tile_m=128)",
        SelectionReason("the default stays", 1.0),
        SearchSummary(32, {"waves": 41}, {"measured": 30, "wrong": 2}, "trials", 120.0, ("wgmma",)),
        StreamTiming(1000000, 0.25, 20, 4000.0, AT),
    ),
    SHIPPED: Timings(
        {
            "isolated": Timing(35, 75),
            "sustained": NotTimed("not measured: the config was shipped, and nothing was searched here"),
        },
        "wgmma(tile_m=64)",
        SelectionReason("the fastest of 6 shipped candidates"),
        SearchSummary(
            ended="shipped",
            seconds=120.0,
            shipped=ConfigOrigin("cuda:sm_90a:nvidia-h200:132:aa", {"driver": "570", "tvm": "0.27"}, True),
        ),
    ),
    DEFAULT: Timings({"sustained": Timing(12.5, 20)}, "x86(a=1)"),
    UNVERIFIED: Timings(predicted_us=12.0),
    OLDER: Timings({"sustained": Timing(12.5)}, search=SearchSummary(4, {}, {"measured": 4})),
    "{}": Timings(),
}


@pytest.mark.parametrize("text", VALUES)
def test_a_stored_document_is_a_value_and_is_written_as_it_was(text: str) -> None:
    assert Timings.from_json(json.loads(text)) == VALUES[text]
    if text != SHIPPED:  # whose other regime stood before the default
        assert json.dumps(VALUES[text].to_json()) == json.dumps(json.loads(text))
    assert VALUES[text].to_json() == json.loads(text)


@pytest.mark.parametrize(
    "document",
    [
        {"note": "of a newer version"},
        {"sustained": {"median_us": None, "baselines": {}, "conditions": {}}},
        {"sustained": {"median_us": True}},
        {"sustained": 3, "isolated": []},
        {"sustained": {"median_us": 1.0, "baselines": {"default": {"ratio": 2.0}}, "conditions": {}}},
        {"default": {}},
        {"default": None},
        {"search": {"trials": 1, "ended": "struck by lightning"}},
        {"search": {"pruned": {"waves": 1.5}}},
        {"selection": {"ratio_low": 1.0}},
        {"stream": {"read_gbps": 4000.0}},
        {"predicted_us": "12"},
    ],
)
def test_a_member_that_is_not_understood_is_kept_and_answers_nothing(document: dict[str, Any]) -> None:
    timings = Timings.from_json(document)
    assert timings == Timings(other=document)
    assert timings.to_json() == document
    assert (timings.of("sustained"), timings.ended, timings.reason) == (None, None, "")


def test_members_of_a_newer_version_stay_beside_those_that_are_known() -> None:
    document = {
        "sustained": {"median_us": 2.0, "samples": 3, "baselines": {}, "conditions": {}, "p99_us": 3.0},
        "search": {"trials": 1, "pruned": {}, "statuses": {}, "ended": "trials", "seconds": 1.0, "effort": "high"},
    }
    timings = Timings.from_json(document)
    timing = timings.of("sustained")
    assert timing is not None
    assert (timing.median_us, timings.ended) == (2.0, "trials")
    assert timings.to_json() == document


def test_a_ratio_is_to_a_baseline_of_the_same_run() -> None:
    timing = Timing(2.0, 3, {"default": BaselineTime(3.0, 1.5)})
    assert (timing.ratio_to("default"), timing.ratio_to("triton")) == (1.5, None)


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({"loadavg": 7.314, "cpus": 2}, "a load average of 7.31 on 2 CPUs"),
        ({"loadavg": 2, "cpus": 1}, "a load average of 2.00 on 1 CPU)"),
        ({"loadavg": 2.0, "cpus": 2}, None),
        ({"loadavg": 7.3}, None),
        ({"loadavg": "many", "cpus": None}, None),
        ({}, None),
    ],
)
def test_a_time_that_was_taken_on_a_busy_machine_says_so(conditions: dict[str, Any], said: str | None) -> None:
    words = Timing(2.0, 3, {}, conditions).busy
    assert words is None if said is None else said in str(words)
