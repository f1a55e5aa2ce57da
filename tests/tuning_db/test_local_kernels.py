"""``LocalKernels``: what is looked up in a data folder, what is built for it, and by which policy."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.helpers.loadable_bench import LoadableBench
from tests.helpers.shipped_files import measured_on, ship
from tests.waiting import PATIENCE_S
from tirgemm.artifact import Kernel
from tirgemm.config import Config
from tirgemm.detect import device as detect_device
from tirgemm.errors import BuildFailed, InvalidRequest, RevokedKernel
from tirgemm.families import family_named
from tirgemm.gemm import Gemm, Range
from tirgemm.kernel_source import KernelSource, policy_named
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.set_members import SetPart
from tirgemm.tuning_db import data_folder, local_kernels, shipped
from tirgemm.tuning_db.local_kernels import LocalKernels

CPU = detect_device("cpu")
ONE, OTHER = Gemm.parse("61x67x71:f16:nt"), Gemm.parse("1..61x67x71:f32:nt:bias")


class LoadableAhead(LoadableBench):
    """Builds that take no time; ``order``: the problems whose builds were begun ahead, and when it was closed."""

    order: list[str] = []

    def build_ahead(self, gemm: Gemm, config: Config, begun: Future[Binary] | None = None) -> None:
        self.order.append(str(gemm))
        super().build_ahead(gemm, config, begun)

    def close(self) -> None:
        self.order.append("close")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalKernels:
    monkeypatch.setattr(local_kernels, "Workbench", LoadableAhead)
    monkeypatch.setattr(LoadableAhead, "order", [])
    return LocalKernels(tmp_path / "data")


@pytest.fixture
def prepare(source: LocalKernels) -> Callable[..., tuple[list[Kernel], dict[Gemm, str]]]:
    def call(*gemms: Gemm, policy: Any = "default") -> tuple[list[Kernel], dict[Gemm, str]]:
        """The kernels that arrived and the failures."""
        arrived: list[Kernel] = []
        preparation = source.prepare(gemms, CPU, policy, arrived.append)
        assert preparation.wait(PATIENCE_S)
        return arrived, preparation.failures

    return call


def test_it_is_a_source_and_looking_makes_nothing(source: LocalKernels, tmp_path: Path) -> None:
    assert isinstance(source, KernelSource)
    assert source.lookup(ONE, CPU) is None
    assert source.refusal(ONE, CPU, "default") is None
    assert not (tmp_path / "data").exists()


def test_defaults_are_begun_together_stored_and_found_again(source: LocalKernels, prepare: Any) -> None:
    kernels, failures = prepare(ONE, OTHER)
    assert ([kernel.gemm for kernel in kernels], failures) == ([ONE, OTHER], {})
    assert LoadableAhead.order == [str(ONE), str(OTHER), "close"]
    assert {kernel.manifest.role for kernel in kernels} == {"fallback"}
    stored = source.lookup(OTHER, CPU)
    assert stored is not None
    assert stored.kernel_sha256 == kernels[1].kernel_sha256
    LoadableAhead.order.clear()
    again, _ = prepare(ONE)
    assert [kernel.kernel_sha256 for kernel in again] == [kernels[0].kernel_sha256]
    assert LoadableAhead.order == [], "it was there"


def test_a_kernel_that_cannot_be_loaded_hides_no_other(source: LocalKernels, prepare: Any, tmp_path: Path) -> None:
    (made,), _ = prepare(ONE)
    with data_folder.open_store(tmp_path / "data") as store:
        record = store.kernel(ONE, CPU.key, "sustained")
        assert record is not None
        damaged = store.put_blob(b"no artifact")
        newest = store.put_kernel(replace(record, id="", artifact_sha256=damaged))
        assert store.kernel(ONE, CPU.key, "sustained") == newest
    stored = source.lookup(ONE, CPU)
    assert stored is not None
    assert stored.kernel_sha256 == made.kernel_sha256


def test_a_range_of_m_gets_a_kernel_set(source: LocalKernels, prepare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = (7, 8, 61)

    def parts(gemm: Gemm, device: Any, regime: Any) -> list[SetPart]:
        default = family_named("x86").default(gemm, device, regime)
        lows = (1, *(high + 1 for high in cuts))
        return [SetPart(gemm.with_(m=Range(low, high)), default) for low, high in zip(lows, cuts, strict=False)]

    monkeypatch.setattr(local_kernels, "default_parts", parts)
    (kernel,), failures = prepare(OTHER)
    assert failures == {}
    assert [str(member.gemm.m) for member in kernel.manifest.members] == ["1..7", "8", "9..61"]
    assert kernel.manifest.role == "fallback"
    stored = source.lookup(OTHER, CPU)
    assert stored is not None
    assert stored.kernel_sha256 == kernel.kernel_sha256

    for n, error in ((68, BuildFailed("one of them does not build")), (69, RevokedKernel("one of them is revoked"))):
        other = OTHER.with_(n=n)
        monkeypatch.setattr(local_kernels, "default_set", Mock(side_effect=error))
        (kernel,), failures = prepare(other)
        assert (kernel.gemm, kernel.manifest.members, failures) == (other, (), {}), "one kernel in place of the set"


def test_a_range_of_m_is_made_where_one_of_its_sizes_was_shipped(
    source: LocalKernels, prepare: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded = OTHER.with_(m=48)
    config = family_named("x86").default(recorded, CPU, "sustained")
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    ship(tmp_path / "shipped", CPU, measured_on(CPU, recorded, [(config, 1.0)]))
    other = OTHER.with_(k=72)
    (kernel,), failures = prepare(OTHER, other, policy="shipped")
    assert kernel.gemm == OTHER
    (failure,) = failures.values()
    assert failure.startswith("no record of it was shipped for this device, driver and TVM; ")
    assert failures.keys() == {other}
    assert source.refusal(OTHER.with_(m=Range(1, 47)), CPU, "shipped") is not None


def test_what_was_raced_in_this_environment_is_made_and_no_range_is_because_of_it(
    source: LocalKernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    raced = OTHER.with_(m=48)
    (known,) = measured_on(CPU, raced, [(family_named("x86").default(raced, CPU, "sustained"), 1.0)])
    (report,) = known.sample_sets
    before = replace(report, conditions={})
    sets = (before, replace(report, reason="report"))
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    ship(tmp_path / "shipped", CPU, [known.with_(sample_sets=sets)])
    assert source.refusal(raced, CPU, "shipped") is None
    assert source.refusal(OTHER, CPU, "shipped") is not None
    assert source.refusal(raced.with_(n=72), CPU, "shipped") is not None


def test_a_policy_says_what_is_made(prepare: Any) -> None:
    makes = 'policy="default" makes its default kernel, `tirgemm tune` a tuned one'
    assert prepare(ONE, policy="tuned") == ([], {ONE: f"it was not tuned here; {makes}"})
    words = f"no record of it was shipped for this device, driver and TVM; {makes}"
    assert prepare(ONE, policy="shipped") == ([], {ONE: words})
    assert prepare(ONE)[1] == {}
    assert len(prepare(ONE, policy="tuned")[0]) == 1, "what is stored is no longer made"
    with pytest.raises(InvalidRequest, match="policy is 'any'"):
        policy_named("any")


def test_what_no_family_writes_is_refused_with_the_reason(source: LocalKernels, prepare: Any) -> None:
    halves = ONE.with_(acc="f16")
    assert "no family writes" in str(source.refusal(halves, CPU, "default"))
    huge = Gemm.parse("2000000x2000000x64:f32:nt")
    assert source.refusal(huge, CPU, "default") is not None
    kernels, failures = prepare(halves, ONE)
    assert [kernel.gemm for kernel in kernels] == [ONE]
    assert list(failures) == [halves]


def test_a_device_that_is_only_named_gets_no_kernel(source: LocalKernels) -> None:
    assert "only named" in str(source.refusal(ONE.with_(align=16), detect_device("sm_90a"), "default"))


def test_cancelling_makes_no_more(source: LocalKernels) -> None:
    arrived: list[Kernel] = []

    def first(kernel: Kernel) -> None:
        arrived.append(kernel)
        preparation.cancel()

    preparation = source.prepare([ONE, OTHER], CPU, "default", first)
    assert preparation.wait(PATIENCE_S)
    assert len(arrived) == 1


def test_a_broken_database_is_told_for_every_problem(source: LocalKernels, tmp_path: Path) -> None:
    from tirgemm.tuning_db.data_folder import database_file

    file = database_file(tmp_path / "data")
    file.parent.mkdir()
    file.write_bytes(b"no database " * 100)
    preparation = source.prepare([ONE, OTHER], CPU, "default", lambda _kernel: None)
    assert preparation.wait(PATIENCE_S)
    assert set(preparation.failures) == {ONE, OTHER}
