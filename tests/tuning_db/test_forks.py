"""A forked process uses the tuning database that its parent has used."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.forked_child import in_forked_child
from tests.helpers.loadable_bench import LoadableBench
from tests.waiting import PATIENCE_S
from tirgemm.detect import device as detect_device
from tirgemm.errors import StoreUnavailable
from tirgemm.gemm import Gemm
from tirgemm.kernel_source import Preparation, run_in_background
from tirgemm.tuning_db import Database, local_kernels
from tirgemm.tuning_db.blobs import BlobStore
from tirgemm.tuning_db.local_kernels import LocalKernels

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
CPU = detect_device("cpu")
ONE, OTHER = Gemm.parse("61x67x71:f16:nt"), Gemm.parse("59x67x71:f32:nt")


def open_files(folder: Path) -> list[str]:
    """The files of ``folder`` that this process has open."""
    places = [os.path.realpath(descriptor) for descriptor in Path("/proc/self/fd").iterdir()]
    return sorted(place for place in places if Path(place).is_relative_to(folder))


def test_blobs_are_put_and_read_in_a_forked_process(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    known = blobs.put(b"from the parent")
    assert blobs.get(known) == b"from the parent"

    def child() -> tuple[bytes, str, int]:
        new = BlobStore(blobs.folder).put(b"from the child")
        blobs.put(b"from the parent")
        return blobs.get(known), new, len(list(blobs.list()))

    read, new, count = in_forked_child(child)
    assert (read, blobs.get(new), count) == (b"from the parent", b"from the child", 2)


def test_a_forked_process_keeps_no_connection_of_its_parent(tmp_path: Path) -> None:
    with Database.embedded(tmp_path / "data") as database:
        with database.read() as connection:
            connection.execute(text("SELECT 1"))
        assert open_files(tmp_path)
        assert in_forked_child(lambda: open_files(tmp_path)) == []


def test_a_process_forked_amid_a_transaction_is_told_so(tmp_path: Path) -> None:
    inside, end = threading.Event(), threading.Event()

    def write() -> None:
        with database.write() as connection:
            connection.execute(text("CREATE TABLE written (a INTEGER)"))
            inside.set()
            end.wait(PATIENCE_S)

    def child() -> None:
        for folder in ("data", "other"):
            with pytest.raises(StoreUnavailable, match=r"in use in its parent at the fork.*spawn"):
                Database.embedded(tmp_path / folder)
        with pytest.raises(StoreUnavailable, match="at the fork"), database.read():
            pass

    with Database.embedded(tmp_path / "data") as database:
        writer = threading.Thread(target=write)
        writer.start()
        assert inside.wait(PATIENCE_S)
        try:
            in_forked_child(child)
        finally:
            end.set()
            writer.join()
        with database.read() as connection:
            assert connection.execute(text("SELECT count(*) FROM written")).scalar_one() == 0
        in_forked_child(lambda: Database.embedded(tmp_path / "data").close())


def test_kernels_are_looked_up_and_made_in_a_forked_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_kernels, "Workbench", LoadableBench)
    source = LocalKernels(tmp_path / "data")

    def make(gemm: Gemm) -> None:
        preparation = source.prepare([gemm], CPU, "default", lambda _: None)
        assert preparation.wait(PATIENCE_S)
        assert not preparation.failures

    def looked_up(gemm: Gemm) -> str:
        stored = source.lookup(gemm, CPU)
        assert stored is not None
        return stored.kernel_sha256

    def child() -> tuple[str, str]:
        make(OTHER)
        return looked_up(ONE), looked_up(OTHER)

    make(ONE)
    known = looked_up(ONE)
    assert in_forked_child(child) == (known, looked_up(OTHER))


def test_what_the_parent_was_making_has_failed_in_a_forked_process() -> None:
    end, preparation = threading.Event(), Preparation((ONE, OTHER))
    run_in_background(preparation, lambda: assert_set(end), str)

    def child() -> tuple[bool, dict[Gemm, str]]:
        return preparation.wait(), preparation.failures

    finished, failures = in_forked_child(child)
    assert finished
    assert list(failures) == [ONE, OTHER]
    assert "process that this one was forked from" in failures[ONE]
    assert not preparation.finished.is_set()
    end.set()
    assert preparation.wait(PATIENCE_S)
    assert not preparation.failures


def assert_set(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)
