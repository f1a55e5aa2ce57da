"""``tirgemm.tune`` and the kernel that it returns: where it is kept, when it is tuned again, and who can load it."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tirgemm
from tests.helpers.artifact_samples import operands
from tests.helpers.loadable_bench import LoadableBench
from tests.present_timings import timing_of
from tirgemm import Budget, Config, Gemm
from tirgemm.artifact import Kernel, Signer, Trust
from tirgemm.errors import InvalidRequest, StoreError, Unsupported, UntrustedArtifact
from tirgemm.hardware import named_device
from tirgemm.tuning.records import Candidate, Status
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.tuned_kernel import TunedKernel, TuneRequest
from tirgemm.tuning_db import data_folder

GEMM = Gemm.parse("61x67x71:f16:nt")
SEARCHED = ("started", "fallback", "batch", "candidate", "selected", "done")
Tune = Callable[..., tuple[TunedKernel, list[str]]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of the test's own, and builds that take no time."""
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setattr("tirgemm.tuning.tuned_kernel.Workbench", LoadableBench)
    return tmp_path


@pytest.fixture
def tune() -> Tune:
    def call(trials: int = 4, **options: Any) -> tuple[TunedKernel, list[str]]:
        """The kernel and the kinds of the events, each once."""
        told: list[str] = []
        kernel = tirgemm.tune(
            GEMM, "cpu", budget=Budget(trials, 600.0), on_event=lambda event: told.append(event.kind), **options
        )
        return kernel, list(dict.fromkeys(told))

    return call


def key_file(home: Path) -> Path:
    return home / "data" / "tirgemm" / "signing.key"


def test_what_is_returned_is_a_kernel_with_its_evidence_in_one_line(tune: Tune) -> None:
    kernel, _ = tune()
    assert isinstance(kernel, Kernel)
    assert (kernel.gemm, kernel.device.kind, kernel.config) == (GEMM, "cpu", kernel.record.config)
    assert kernel.kernel_sha256 == kernel.record.kernel_sha256
    assert kernel.artifact_sha256 == kernel.record.artifact_sha256
    assert timing_of(kernel.timings).median_us == timing_of(kernel.record.timings).median_us
    assert kernel.certificate is not None
    assert kernel.certificate["passed"]
    us = timing_of(kernel.timings).median_us
    assert repr(kernel) == f"<TunedKernel {GEMM} on {kernel.device.key}: {kernel.config}, {us:.2f} us sustained>"
    tensors, product = operands(GEMM)
    with kernel:
        assert np.array_equal(kernel(tensors["a"], tensors["b"]), product)


@pytest.mark.torch
def test_what_is_returned_becomes_a_pytorch_operator(tune: Tune) -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    from tirgemm.torch import matmul_op

    tensors, product = operands(GEMM)
    result = matmul_op(tune(store=None)[0])(torch.from_numpy(tensors["a"]), torch.from_numpy(tensors["b"]))
    assert np.array_equal(result.numpy(), product)


def test_a_second_call_answers_from_the_users_database_and_searches_nothing(tune: Tune, home: Path) -> None:
    first, told = tune()
    assert set(told) >= set(SEARCHED)
    assert (home / "data" / "tirgemm" / "tirgemm.db").exists()
    for trials in (4, 2):
        again, told = tune(trials)
        assert told == ["done"]
        assert again.record == first.record


def test_a_larger_budget_goes_on_from_the_records(tune: Tune) -> None:
    tune(4)
    more, told = tune(7)
    assert set(told) >= set(SEARCHED) - {"fallback"}
    assert more.record.trials == 7
    assert tune(7)[1] == ["done"]


def test_retune_tries_as_many_again(tune: Tune) -> None:
    tune(4)
    more, told = tune(4, retune=True)
    assert "candidate" in told
    assert more.record.trials == 8


def test_retune_goes_on_from_what_was_tried_of_its_families() -> None:
    store, device = MemoryStore(), named_device("sm_90a")
    for number, family in enumerate(["mma", "simt", "simt", "mma", "mma"]):
        status = Status.PRUNED if number == 1 else Status.MEASURED
        config = Config(family, (("number", number),))
        store.add_candidate(Candidate(GEMM, device.key, "sustained", config, status))
    request = TuneRequest(GEMM, device, "sustained", Budget(8), families=("simt",))
    assert request.budget_on(store).trials == 8
    assert replace(request, retune=True).budget_on(store).trials == 8 + 1
    assert replace(request, retune=True, families=None).budget_on(store).trials == 8 + 4


def test_other_families_than_the_kernels_own_are_not_answered_by_it(
    tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(4)
    assert tune(4, families=["x86"])[1] == ["done"]
    with pytest.raises(InvalidRequest, match="simt"):
        tune(4, families=["simt"])
    monkeypatch.setattr("tirgemm.tuning.tuned_kernel.chosen_families", lambda *_: ())
    assert "started" in tune(4)[1]


def test_without_a_store_nothing_is_kept_but_the_key(tune: Tune, home: Path) -> None:
    kernel, _ = tune(store=None)
    assert [path.name for path in key_file(home).parent.iterdir()] == ["signing.key"]
    assert "started" in tune(store=None)[1]
    assert tirgemm.load(kernel.save(home / "k.tirgemm")).kernel_sha256 == kernel.kernel_sha256


def test_a_store_of_the_callers_is_used_and_signed_for_with_the_users_key(tune: Tune, home: Path) -> None:
    store = MemoryStore()
    kernel, _ = tune(store=store)
    assert tune(store=store)[1] == ["done"]
    assert store.kernel(GEMM, kernel.device.key, "sustained") is not None
    assert tirgemm.load(kernel.save(home / "k.tirgemm")).gemm == GEMM


def test_what_is_saved_is_loaded_by_the_same_user_and_refused_by_another(
    tune: Tune, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, _ = tune()
    assert stat.S_IMODE(key_file(home).stat().st_mode) == 0o600
    path = kernel.save(home / "k.tirgemm")
    tensors, product = operands(GEMM)
    assert np.array_equal(tirgemm.load(path)(tensors["a"], tensors["b"]), product)
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "of another"))
    with pytest.raises(UntrustedArtifact, match="tirgemm trust add ed25519:"):
        tirgemm.load(path)


def test_an_artifact_is_not_left_half_written(tune: Tune, home: Path) -> None:
    kernel, _ = tune()
    with pytest.raises(InvalidRequest, match=r"absent.*cannot be written"):
        kernel.save(home / "absent" / "k.tirgemm")
    (home / "folder").mkdir()
    with pytest.raises(InvalidRequest, match="cannot be written"):
        kernel.save(home / "folder")
    assert not list(home.glob(".folder*"))


def test_a_signer_of_the_callers_signs_and_is_trusted_by_its_kernel_alone(tune: Tune, home: Path) -> None:
    signer = Signer.generate()
    kernel, _ = tune(signer=signer)
    path = kernel.save(home / "k.tirgemm")
    assert tirgemm.load(path, trust=Trust.of(signer.public)).gemm == GEMM
    with pytest.raises(UntrustedArtifact):
        tirgemm.load(path)


def test_a_kernel_that_another_key_signed_is_built_here_again(tune: Tune) -> None:
    foreign, _ = tune(signer=Signer.generate())
    kernel, told = tune()
    assert {"started", "selected"} <= set(told)
    assert "candidate" not in told, "what is recorded is not measured again by the search"
    assert kernel.artifact_sha256 != foreign.artifact_sha256
    assert tune()[1] == ["done"]


@pytest.mark.parametrize("effort", ["none", "quick"])
def test_a_kernel_of_the_signers_own_answers_behind_one_that_another_key_signed(home: Path, effort: str) -> None:
    with data_folder.open_store(home / "store") as store:
        own = tirgemm.tune(GEMM, "cpu", effort=effort, store=store).record
        foreign = tirgemm.tune(GEMM, "cpu", budget=Budget(4, 600.0), signer=Signer.generate(), store=store).record
        foreign = store.put_kernel(replace(foreign, id="", trials=own.trials, timings=own.timings))
        assert store.kernel(GEMM, own.device.key, "sustained") == foreign
        for _ in range(2):
            assert tirgemm.tune(GEMM, "cpu", effort=effort, store=store).record == own
        assert store.kernel(GEMM, own.device.key, "sustained") == foreign


@pytest.mark.parametrize("lost", ["damaged", "deleted", "of another key"])
def test_a_default_whose_artifact_cannot_be_loaded_is_built_again(home: Path, lost: str) -> None:
    def default(signer: Signer | None = None) -> TunedKernel:
        return tirgemm.tune(GEMM, "cpu", effort="none", signer=signer)

    first = default(Signer.generate() if lost == "of another key" else None)
    sha256 = first.artifact_sha256
    blob = home / "data" / "tirgemm" / "blobs" / sha256[:2] / sha256[2:4] / sha256
    data = blob.read_bytes()
    if lost == "damaged":
        blob.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif lost == "deleted":
        blob.unlink()
    again = default()
    assert again.record.id != first.record.id
    assert default().record == again.record, "what was built again is the answer"


def test_folder_and_database_come_from_the_variables_that_the_command_line_reads(
    tune: Tune, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIRGEMM_DATA", str(home / "volume"))
    monkeypatch.setenv("TIRGEMM_DB", f"sqlite:///{home / 'other.db'}")
    kernel, _ = tune()
    assert (home / "other.db").exists()
    assert tirgemm.load(kernel.save(home / "k.tirgemm")).gemm == GEMM, "the folder's key is the user's"
    with data_folder.open_store(home / "volume", f"sqlite:///{home / 'other.db'}") as store:
        assert store.kernel(GEMM, kernel.device.key, "sustained") == kernel.record


def test_a_folder_that_cannot_be_made_is_named(tune: Tune, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("no folder")
    monkeypatch.setenv("TIRGEMM_DATA", str(home / "file" / "data"))
    with pytest.raises(StoreError, match="file/data"):
        tune()
    with pytest.raises(InvalidRequest, match=r"private key .*file/data/signing.key cannot be made.*TIRGEMM_DATA"):
        tune(store=None)


@pytest.mark.parametrize("seed", [-1, 1.5, "x", True])
def test_a_seed_that_draws_nothing_is_refused_before_anything_is_made(home: Path, seed: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"seed is {seed!r}; it must be an integer from 0"):
        tirgemm.tune(GEMM, "cpu", seed=seed)
    assert not (home / "data").exists()


@pytest.mark.parametrize("as_type", [str, Path])
def test_a_store_that_is_a_path_is_refused(home: Path, as_type: Callable[[str], Any]) -> None:
    with pytest.raises(InvalidRequest, match="store is 'folder', a path; give a Store, or None"):
        tirgemm.tune(GEMM, "cpu", store=as_type("folder"))
    assert not (home / "data").exists()


def test_what_no_family_writes_is_refused_before_anything_is_made() -> None:
    with pytest.raises(Unsupported):
        tirgemm.tune("64x64x64:f16:nt:acc=f16", "cpu", store=None)
