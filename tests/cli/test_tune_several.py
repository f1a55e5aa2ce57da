"""``tirgemm tune`` for several problems: what is an answer, and what is searched for."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.loadable_bench import LoadableBench
from tirgemm import Budget, Gemm
from tirgemm.artifact import Signer
from tirgemm.detect import device as detect
from tirgemm.service.commands.sweep import sweep
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.tuned_kernel import TuneRequest

GEMMS = (Gemm.parse("61x67x71:f16:nt"), Gemm.parse("63x65x127:f16:nt"))


def answers(bench: LoadableBench, **changes: Any) -> list[KernelRecord | None]:
    requests = [TuneRequest(gemm, bench.device, "sustained", Budget(3), **changes) for gemm in GEMMS]
    outcomes = sweep(requests, bench, stop=threading.Event(), quiet=True)
    return [outcome.record for gemm in GEMMS for outcome in outcomes if outcome.gemm == gemm]


@pytest.fixture
def bench() -> LoadableBench:
    return LoadableBench(detect("cpu"), MemoryStore(), Signer.generate())


def test_what_is_stored_is_the_answer(bench: LoadableBench) -> None:
    first = answers(bench)
    assert None not in first
    bench.fake.evaluated.clear()
    assert answers(bench) == first
    assert bench.fake.evaluated == []


def test_a_kernel_that_cannot_be_loaded_is_no_answer(bench: LoadableBench) -> None:
    first = answers(bench)
    bench.signer = Signer.generate()
    again = answers(bench)
    assert None not in again
    assert not {record.id for record in again if record} & {record.id for record in first if record}


def test_a_kernel_of_another_family_is_no_answer(bench: LoadableBench) -> None:
    for record in answers(bench):
        assert record is not None
        bench.store.put_kernel(replace(record, id="", config=replace(record.config, family="other")))
    assert [record.config.family for record in answers(bench, families=("x86",)) if record] == ["x86"] * 2
