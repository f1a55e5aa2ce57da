"""Export, import and merge, on every database."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.storage.databases import (
    DEVICE,
    GEMM,
    OTHER_DEVICE,
    OTHER_GEMM,
    PostgresDatabases,
    await_locked,
    candidate,
    kernel,
    key,
    opened,
    samples,
)
from tests.contract.storage.store_contract import signed_set
from tirgemm.errors import InvalidRequest, StoreError, VerificationFailed
from tirgemm.tuning.records import KernelRecord, Status
from tirgemm.tuning_db import Database, SqlStore, transfer
from tirgemm.tuning_db import store as store_module
from tirgemm.tuning_db.store import write_candidate
from tirgemm.tuning_db.transfer import Merged, export_records, import_records, merge
from tirgemm.tuning_db.upkeep.pins import set_pinned

MakeDatabase = Callable[[], Database]


@pytest.fixture(params=["sqlite", "postgresql"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeDatabase]:
    """A function that opens one new database after the other."""
    with ExitStack() as stack:
        count = 0

        def fresh() -> Database:
            nonlocal count
            count += 1
            folder = tmp_path / f"data{count}"
            if request.param == "sqlite":
                return stack.enter_context(Database.embedded(folder))
            postgres: PostgresDatabases = request.getfixturevalue("postgres")
            return stack.enter_context(opened(postgres.migrated(folder), folder))

        yield fresh


def stored_kernel(store: SqlStore, data: bytes, **changes: Any) -> KernelRecord:
    return store.put_kernel(kernel(artifact_sha256=store.put_blob(data), artifact_bytes=len(data), **changes))


@pytest.fixture
def source(make: MakeDatabase) -> Database:
    """Three candidates, one of them not measured, and two kernels."""
    database = make()
    store = SqlStore(database)
    store.put_device(DEVICE)
    store.add_candidate(candidate(1))
    store.add_candidate(candidate(2, status=Status.WRONG, error=math.inf, message="NaN\0", trace=None, sample_sets=()))
    store.add_candidate(candidate(3, gemm=OTHER_GEMM, attempt=2))
    store.add_samples(key(1), samples(9.0, "selection"))
    stored_kernel(store, b"artifact 1", role="fallback")
    stored_kernel(store, bytes(range(256)) * 33, device=OTHER_DEVICE, certificate=None)
    return database


def test_everything_arrives_once(source: Database, make: MakeDatabase, tmp_path: Path) -> None:
    target, path = make(), tmp_path / "records.jsonl"
    header = export_records(source, path, artifacts=True)
    assert header["counts"] == {"candidate": 3, "device": 2, "kernel": 2}
    assert import_records(target, path) == Merged(candidates=3, known=0, sample_sets=3, kernels=2)
    there, here = SqlStore(source), SqlStore(target)
    for gemm in (GEMM, OTHER_GEMM):
        assert here.candidates(gemm, DEVICE.key, "sustained") == there.candidates(gemm, DEVICE.key, "sustained")
    assert here.kernels() == there.kernels()
    for record in here.kernels():
        assert here.get_blob(record.artifact_sha256) == there.get_blob(record.artifact_sha256)
    assert import_records(target, path) == Merged(candidates=0, known=3, sample_sets=0, kernels=0)
    assert here.kernels() == there.kernels()
    assert here.candidate(key(1)) == there.candidate(key(1))


@pytest.mark.parametrize("how", ["export", "merge"])
def test_what_is_recorded_meanwhile_is_no_part_of_an_export(
    source: Database, make: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    target, path = make(), tmp_path / "records.jsonl"
    records_of = transfer._records

    def recording_meanwhile(*arguments: Any) -> Iterator[dict[str, Any]]:
        SqlStore(source).add_candidate(candidate(4))
        return records_of(*arguments)

    monkeypatch.setattr(transfer, "_records", recording_meanwhile)
    if how == "merge":
        assert merge(target, source).candidates == 3
    else:
        assert export_records(source, path)["counts"]["candidate"] == 3
        assert import_records(target, path).candidates == 3
    assert SqlStore(source).candidate(key(4)) is not None


def test_a_candidate_that_another_records_at_that_moment_is_a_known_one(source: Database, make: MakeDatabase) -> None:
    target = make()
    with ThreadPoolExecutor(1) as thread:
        with target.write() as connection:
            write_candidate(target, connection, candidate(1, sample_sets=(samples(77.0),)))
            merging = thread.submit(merge, target, source, artifacts=False)
            await_locked(target, connection, 1)
        assert merging.result() == Merged(candidates=2, known=1, sample_sets=3)
    recorded = SqlStore(target).candidate(key(1))
    assert recorded is not None
    assert recorded.sample_sets == (samples(77.0), samples(11.0), samples(9.0, "selection"))


def test_without_artifacts_a_file_holds_candidates_only(source: Database, make: MakeDatabase, tmp_path: Path) -> None:
    target, path = make(), tmp_path / "records.jsonl.gz"
    export_records(source, path)
    assert gzip.decompress(path.read_bytes()).startswith(b'{"format":"tirgemm-records","version":1')
    assert import_records(target, path).kernels == 0
    assert SqlStore(target).kernels() == []
    assert len(SqlStore(target).history(DEVICE.key, "sustained")) == 2


def test_what_two_databases_measured_is_united(source: Database, make: MakeDatabase) -> None:
    target = make()
    store = SqlStore(target)
    store.add_candidate(candidate(1, message="mine", sample_sets=(samples(77.0), samples(9.0, "selection"))))
    store.add_candidate(candidate(2, status=Status.TIMED_OUT, message="slow here", sample_sets=()))
    store.add_candidate(candidate(3, gemm=OTHER_GEMM, status=Status.CRASHED, sample_sets=(), trace=None))
    assert merge(target, source, artifacts=False) == Merged(candidates=0, known=3, sample_sets=2, kernels=0)
    first, second = store.candidate(key(1)), store.candidate(key(2))
    assert first is not None
    assert second is not None
    assert first.message == "mine"
    assert first.sample_sets == (samples(77.0), samples(9.0, "selection"), samples(11.0))
    assert (second.status, second.message) == (Status.TIMED_OUT, "slow here")
    assert store.candidates(OTHER_GEMM, DEVICE.key, "sustained") == [candidate(3, gemm=OTHER_GEMM, attempt=2)]
    assert merge(target, source, artifacts=False) == Merged(candidates=0, known=3, sample_sets=0, kernels=0)


def test_an_imported_kernel_answers_only_if_it_is_newer(make: MakeDatabase) -> None:
    old, target, new = make(), make(), make()
    stored_kernel(SqlStore(old), b"old")
    mine = stored_kernel(SqlStore(target), b"mine")
    newer = stored_kernel(SqlStore(new), b"new")
    merge(target, old)
    assert SqlStore(target).kernel(GEMM, DEVICE.key, "sustained") == mine
    merge(target, new)
    assert SqlStore(target).kernel(GEMM, DEVICE.key, "sustained") == newer
    latest = stored_kernel(SqlStore(target), b"latest")
    assert SqlStore(target).kernel(GEMM, DEVICE.key, "sustained") == latest


def test_a_described_device_keeps_its_own_description(source: Database, make: MakeDatabase, tmp_path: Path) -> None:
    target, path = make(), tmp_path / "again.jsonl"
    SqlStore(target).put_device(DEVICE.with_(clock_mhz=999))
    merge(target, source)
    export_records(target, path)
    devices = [json.loads(line)["device"] for line in path.read_text().splitlines() if '"kind":"device"' in line]
    assert {device["key"]: device["clock_mhz"] for device in devices} == {DEVICE.key: 999, OTHER_DEVICE.key: 0}


def test_an_import_spoils_no_count_of_lost_attempts(source: Database, make: MakeDatabase) -> None:
    from tirgemm.tuning_db.upkeep.admin import info

    target = make()
    assert SqlStore(target).begin_attempt(key(1)) == 1
    merge(target, source)
    assert info(target).lost_attempts == 1


def _change(line: str, **changes: Any) -> str:
    return json.dumps(json.loads(line) | changes)


def _drop(line: str, name: str) -> str:
    return json.dumps({field: value for field, value in json.loads(line).items() if field != name})


BAD_LINES: dict[str, tuple[Callable[[str], str], str]] = {
    "no JSON": (lambda line: line[:-3], "not JSON"),
    "no object": (lambda _: "[1]", "not an object"),
    "unknown kind": (lambda line: _change(line, kind="spell"), "kind is 'spell'"),
    "no gemm": (lambda line: _drop(line, "gemm"), "'gemm' is missing"),
    "impossible gemm": (lambda line: _change(line, gemm="0x3x5"), "gemm field m is 0"),
    "unknown status": (lambda line: _change(line, status="lucky"), "lucky"),
    "unknown regime": (lambda line: _change(line, regime="cold"), "regime is 'cold'"),
    "config of no knobs": (lambda line: _change(line, config={"family": "x86"}), "not a config"),
    "samples of text": (lambda line: _change(line, sample_sets=[{"samples_us": ["fast"]}]), "missing"),
    "no samples": (lambda line: _change(line, sample_sets=[samples().to_json() | {"samples_us": []}]), "finite"),
    "huge samples": (
        lambda line: _change(line, sample_sets=[samples().to_json() | {"samples_us": [10**400]}]),
        "large",
    ),
    "attempt of text": (lambda line: _change(line, attempt="two"), "attempt is 'two'"),
    "huge attempt": (lambda line: _change(line, attempt=2**31), "attempt is 2147483648"),
    "long device": (lambda line: _change(line, device_key="x" * 256), "device_key"),
    "message of numbers": (lambda line: _change(line, message=5), "message is 5"),
    "deep nesting": (lambda _: "[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_named_and_nothing_is_imported(name: str, tmp_path: Path) -> None:
    change, words = BAD_LINES[name]
    path = tmp_path / "records.jsonl"
    with Database.embedded(tmp_path / "from") as source:
        SqlStore(source).add_candidate(candidate(1))
        SqlStore(source).add_candidate(candidate(2))
        export_records(source, path)
    lines = path.read_text().splitlines()
    lines[2] = change(lines[2])
    path.write_text("\n".join(lines) + "\n")
    with Database.embedded(tmp_path / "to") as target:
        with pytest.raises(InvalidRequest, match=f"line 3 .*{words}"):
            import_records(target, path)
        assert SqlStore(target).history(DEVICE.key, "sustained") == []


def test_a_truncated_file_is_refused_whole(tmp_path: Path) -> None:
    for name in ("records.jsonl", "records.jsonl.gz"):
        path = tmp_path / name
        with Database.embedded(tmp_path / "from") as source:
            for number in range(40):
                SqlStore(source).add_candidate(candidate(number))
            export_records(source, path)
        whole = path.read_bytes()
        last_line = whole.rfind(b"\n", 0, -1) + 1
        for cut in (whole[: len(whole) // 2], whole[:10], b"", whole[: last_line or -9]):
            path.write_bytes(cut)
            with Database.embedded(tmp_path / "to") as target:
                with pytest.raises(InvalidRequest, match=r"records\.jsonl"):
                    import_records(target, path)
                assert SqlStore(target).history(DEVICE.key, "sustained") == []


@pytest.mark.parametrize(
    ("header", "words"),
    [({"format": "other"}, "does not begin"), ({"version": 2}, "Upgrade"), ({"counts": None}, "counts")],
)
def test_a_file_of_another_kind_or_version_is_refused(header: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with Database.embedded(tmp_path / "data") as database:
        export_records(database, path)
        path.write_text(_change(path.read_text(), **header))
        with pytest.raises(InvalidRequest, match=words):
            import_records(database, path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"artifact": "AAAA"}, "hash"),
        ({"id": "no-id"}, "'no-id'; a kernel's is 1 to 32 hexadecimal digits"),
        ({"pinned": 1}, "pinned is 1; it must be true or false"),
        ({"pinned": True, "role": "unverified"}, "pinned is True; it .* is false of an unverified build"),
    ],
    ids=["artifact", "id", "pinned", "unverified"],
)
def test_a_kernel_that_was_changed_on_the_way_is_refused(
    source: Database, make: MakeDatabase, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    target, path = make(), tmp_path / "records.jsonl"
    export_records(source, path, artifacts=True)
    lines = path.read_text().splitlines()
    lines[-1] = _change(lines[-1], **changes)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidRequest, match=f"line {len(lines)} .*{words}"):
        import_records(target, path)
    assert SqlStore(target).kernels() == []
    assert SqlStore(target).candidate(key(1)) is None


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_set_of_which_a_member_gives_a_row_other_bits_is_not_imported(
    make: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    """Beside kernels that are there, and beside none."""
    source, target, path = make(), make(), tmp_path / "records.jsonl"
    gemm, data = GEMM.with_(invariant=True), b"a set"
    with monkeypatch.context() as unchecked:  # as a tirgemm did that compared the first members alone
        unchecked.setattr(store_module, "require_same_rows", lambda *_: None)
        sha256 = SqlStore(source).put_blob(data)
        odd = signed_set(gemm, ["a" * 64, "b" * 64], artifact_sha256=sha256, artifact_bytes=len(data))
        SqlStore(source).put_kernel(odd)
    if is_stored:
        SqlStore(target).put_kernel(signed_set(gemm.with_(m=3), ["a" * 64]))
    export_records(source, path, artifacts=True)
    with pytest.raises(VerificationFailed, match="other bits" if is_stored else "the kernels of its set"):
        import_records(target, path)
    assert SqlStore(target).kernel(gemm, DEVICE.key, "sustained") is None


@pytest.mark.parametrize("how", ["export", "merge"])
@pytest.mark.parametrize("other_pin", [False, True])
def test_a_pin_arrives_where_the_problem_has_none(
    source: Database, make: MakeDatabase, tmp_path: Path, how: str, other_pin: bool
) -> None:
    target, store = make(), SqlStore(source)
    pinned = stored_kernel(store, b"pinned", gemm=OTHER_GEMM)
    stored_kernel(store, b"newer", gemm=OTHER_GEMM)
    set_pinned(source, pinned.id, pinned=True)
    mine = stored_kernel(SqlStore(target), b"mine", gemm=OTHER_GEMM)
    if other_pin:
        set_pinned(target, mine.id, pinned=True)

    def bring() -> None:
        if how == "merge":
            merge(target, source)
        else:
            export_records(source, tmp_path / "records.jsonl", artifacts=True)
            import_records(target, tmp_path / "records.jsonl")

    def pins() -> set[str]:
        return {record.id for record in SqlStore(target).kernels() if record.pinned}

    bring()
    assert pins() == {mine.id if other_pin else pinned.id}
    answer = SqlStore(target).kernel(OTHER_GEMM, DEVICE.key, "sustained")
    assert answer is not None
    assert answer.id in pins()
    for kernel_id in pins():
        set_pinned(target, kernel_id, pinned=False)
    bring()
    assert pins() == set(), "a kernel that is there stays as it is"


@pytest.mark.parametrize("how", ["export", "merge"])
def test_kernels_whose_artifacts_are_lost_or_damaged_are_left_out_and_named(
    source: Database, make: MakeDatabase, tmp_path: Path, how: str
) -> None:
    target, store = make(), SqlStore(source)
    whole = {record.id for record in store.kernels()}
    stored_kernel(store, b"damaged")
    for _ in range(2):
        store.put_kernel(replace(kernel(), artifact_sha256="0" * 64))
    damaged = hashlib.sha256(b"damaged").hexdigest()
    (blob,) = source.blobs.folder.rglob(damaged)
    blob.write_bytes(b"changed")
    if how == "merge":
        merged = merge(target, source)
        missing = merged.missing
    else:
        header = export_records(source, tmp_path / "records.jsonl", artifacts=True)
        assert header["counts"]["kernel"] == 2
        missing = header["missing"]
        merged = import_records(target, tmp_path / "records.jsonl")
    assert list(missing) == sorted(["0" * 64, damaged])
    assert merged.kernels == 2
    assert {record.id for record in SqlStore(target).kernels()} == whole


def test_files_and_databases_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with Database.embedded(tmp_path / "data") as database:
        with pytest.raises(InvalidRequest, match=r"missing\.jsonl"):
            import_records(database, tmp_path / "missing.jsonl")
        with pytest.raises(StoreError, match="cannot be written"):
            export_records(database, tmp_path / "no such folder" / "records.jsonl")
        with pytest.raises(InvalidRequest, match="into itself"):
            merge(database, database)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
