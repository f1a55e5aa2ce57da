"""Records of a file whose figures cannot be are refused: pages and searches compute with them."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import pytest

from tests.contract.storage.databases import DEVICE, candidate, kernel
from tirgemm.errors import InvalidRequest
from tirgemm.tuning_db.record_values import candidate_out, device_out, kernel_out, value_in

ARTIFACT = b"an artifact"
TIMING, SAMPLES = ("timings", "sustained"), ("sample_sets", 0)


def record_of(kind: str) -> dict[str, Any]:
    """A record that is taken, as a file has it."""
    sha256 = hashlib.sha256(ARTIFACT).hexdigest()
    record = {
        "kernel": lambda: kernel_out(kernel(artifact_sha256=sha256, id="a1", created_at="now"), ARTIFACT, "now"),
        "candidate": lambda: candidate_out(candidate(1)),
        "device": lambda: device_out(DEVICE.to_json()),
    }[kind]()
    plain: dict[str, Any] = json.loads(json.dumps(record))
    return plain


def changed(record: dict[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    record = copy.deepcopy(record)
    part: Any = record
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return record


@pytest.mark.parametrize("kind", ["kernel", "candidate", "device"])
def test_a_record_of_ours_is_taken(kind: str) -> None:
    value_in(record_of(kind), "here")


@pytest.mark.parametrize(
    ("kind", "path", "value", "words"),
    [
        ("kernel", (*TIMING, "median_us"), 5e-324, "timings.sustained.median_us is 5e-324; it must be a number of"),
        ("kernel", (*TIMING, "median_us"), 0, "timings.sustained.median_us is 0;"),
        ("kernel", (*TIMING, "median_us"), -1.5, "timings.sustained.median_us is -1.5;"),
        ("kernel", (*TIMING, "median_us"), "nan", "timings.sustained is {"),
        ("kernel", (*TIMING, "samples"), -5, "timings.sustained.samples is -5;"),
        ("kernel", (*TIMING, "baselines", "default", "median_us"), 0, "sustained.baselines.default.median_us is 0;"),
        ("kernel", (*TIMING, "conditions", "at"), 5, "timings.sustained.conditions.at is 5;"),
        ("kernel", ("timings", "predicted_us"), "soon", "timings.predicted_us is 'soon'"),
        ("kernel", ("timings", "predicted_us"), 0, "timings.predicted_us is 0;"),
        (
            "kernel",
            ("timings", "members"),
            [{"m": "9", "family": "", "config": "", "config_hash": "", "kernel_sha256": "", "median_us": 0}],
            "timings.members.0.median_us is 0;",
        ),
        ("kernel", ("certificate", "tests"), ["exact"], "certificate.tests has 'exact';"),
        (
            "kernel",
            ("certificate", "tests"),
            [{"name": "exact", "k": 3}],
            "certificate.tests has {'name': 'exact', 'k': 3};",
        ),
        ("kernel", ("certificate", "environment", "tvm"), [1], "certificate.environment.tvm is [1];"),
        ("kernel", ("certificate", "environment"), "tvm", "certificate.environment is 'tvm';"),
        ("kernel", ("certificate", "at"), 5, "certificate.at is 5;"),
        ("kernel", ("certificate", "passed"), "yes", "certificate.passed is 'yes';"),
        ("kernel", ("device", "environment", "tvm"), 1, "device.environment.tvm is 1;"),
        ("kernel", ("device", "arch"), 5, "device.arch is 5;"),
        ("device", ("device", "model"), 5, "device.model is 5;"),
        ("device", ("device", "features"), [5], "device.features is 5;"),
        ("candidate", (*SAMPLES, "samples_us"), [1.0, 0.0], "sample_sets.0.samples_us is 0.0;"),
        ("candidate", (*SAMPLES, "baselines", "numpy_f32"), [-1.0], "sample_sets.0.numpy_f32 is -1.0;"),
        ("candidate", (*SAMPLES, "conditions", "at"), [1], "sample_sets.0.conditions.at is [1];"),
        ("candidate", (*SAMPLES, "conditions", "yardstick_us"), "9", "sample_sets.0.conditions.yardstick_us is '9';"),
        ("candidate", (*SAMPLES, "reason"), [1], "sample_sets.0.reason is [1];"),
    ],
)
def test_a_figure_that_cannot_be_is_named(kind: str, path: tuple[str | int, ...], value: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        value_in(changed(record_of(kind), path, value), "line 3")
    assert str(refused.value).startswith("line 3 is no record: ")
    assert words in str(refused.value)
    assert str(refused.value).endswith("nothing was imported")
