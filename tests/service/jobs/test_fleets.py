"""Which fleet the settings of a worker mean, and what is refused before there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.artifact_samples import SIGNER
from tirgemm import _extras
from tirgemm.detect import device as detect_device
from tirgemm.detect import devices
from tirgemm.errors import InvalidDevice, InvalidRequest, MissingExtra
from tirgemm.service.jobs.fleets import open_fleet, require_devices
from tirgemm.service.jobs.local_fleet import CANCEL_GRACE_SECONDS, LocalFleet
from tirgemm.service.settings import Settings
from tirgemm.tuning.measure.conditions import CACHE_VARIABLE
from tirgemm.tuning.records.memory_store import MemoryStore


def test_the_local_engine_has_the_devices_of_this_host(tmp_path: Path) -> None:
    fleet = open_fleet(Settings.load(data=tmp_path, lock_dir=tmp_path), MemoryStore(), SIGNER)
    assert [engine.devices() for engine in fleet.engines()] == [[device] for device in devices()]
    fleet.close()


def test_the_engine_ray_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_extras.PACKAGES, "ray", ("no_such_package",))
    with pytest.raises(MissingExtra, match=r"pip install 'tirgemm\[ray\]'"):
        require_devices(Settings.load(engine="ray"))


def test_devices_of_a_cluster_are_named_by_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_extras.PACKAGES, "ray", ("json",))
    for kind in ("all", "cpu", "cuda"):
        require_devices(Settings.load(engine="ray", devices=kind))
    with pytest.raises(InvalidDevice, match="'cuda:0'; on a Ray cluster it must be all or one of the kinds cpu, cuda"):
        require_devices(Settings.load(engine="ray", devices="cuda:0"))


def test_an_impossible_cache_is_refused_before_there_is_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "x")
    with pytest.raises(InvalidRequest, match=f"{CACHE_VARIABLE} is 'x'; it must be a number of MiB from 1 to 16384"):
        require_devices(Settings.load())


def test_an_engine_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="--engine, TIRGEMM_ENGINE"):
        Settings.load(engine="slurm")


def test_measurements_of_a_worker_have_a_moment_to_end_when_their_job_is_cancelled(tmp_path: Path) -> None:
    fleet = LocalFleet(MemoryStore(), SIGNER, tmp_path, 1, [detect_device("cpu")])
    bench = fleet._open_bench(detect_device("cpu"))
    assert bench.measurer is not None
    assert bench.measurer.grace_s == CANCEL_GRACE_SECONDS
    bench.close()
    fleet.close()
