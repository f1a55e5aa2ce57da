"""``DependentKernels``: what is rebuilt for dependent launches, what its certificate must hold, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.artifact_samples import TRUST
from tests.tuning_db.dependent_bench import HOPPER, DependentBench, certified, packed, packed_set
from tests.waiting import PATIENCE_S
from tirgemm.artifact import Kernel, load
from tirgemm.detect import device as detect
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, ServiceUnreachable
from tirgemm.gemm import Gemm, Range
from tirgemm.kernel_source import KernelSource, Preparation, lookup_all, run_in_background
from tirgemm.tuning.build import dependent_launch
from tirgemm.tuning_db import data_folder, dependent_kernels
from tirgemm.tuning_db.dependent_kernels import DependentKernels

ONE, OTHER = Gemm.parse("16x64x128:f16:nt"), Gemm.parse("1..64x96x64:f16:nt:bias")


class PlainKernels:
    """A KernelSource of kernels that are launched as ever: ``stored`` ones, and ``makeable`` that come one by one."""

    tunes = False

    def __init__(self, *stored: bytes, makeable: Sequence[bytes] = ()) -> None:
        self.kernels, self.makeable = self._by_gemm(stored), self._by_gemm(makeable)
        self.asked: list[Gemm] = []

    def _by_gemm(self, packages: Sequence[bytes]) -> dict[Gemm, Kernel]:
        return {kernel.gemm: kernel for kernel in (load(each, trust=TRUST) for each in packages)}

    def lookup(self, gemm: Gemm, device: Device) -> Kernel | None:
        del device
        return self.kernels.get(gemm)

    def refusal(self, gemm: Gemm, device: Device, policy: str) -> str | None:
        del device
        return None if gemm in self.makeable and policy == "default" else "it was not tuned"

    def prepare(self, gemms: Sequence[Gemm], device: Device, policy: str, arrived: Any) -> Preparation:
        del device, policy
        self.asked += gemms

        def make() -> None:
            for gemm in gemms:
                arrived(self.makeable[gemm])

        return run_in_background(Preparation(tuple(gemms)), make, str)


@pytest.fixture(autouse=True)
def _benches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dependent_kernels, "Workbench", DependentBench)
    monkeypatch.setattr(DependentBench, "made", [])
    monkeypatch.setattr(dependent_kernels, "_POLL_S", 0.01)
    yield
    assert all(bench.closed for bench in DependentBench.made)


Prepare = Callable[..., tuple[list[Kernel], dict[Gemm, str]]]


@pytest.fixture
def prepare(tmp_path: Path) -> Prepare:
    def call(
        inner: Any, *gemms: Gemm, policy: Any = "default", place: Device = HOPPER
    ) -> tuple[list[Kernel], dict[Gemm, str]]:
        """The kernels that arrived and the failures."""
        arrived: list[Kernel] = []
        preparation = DependentKernels(inner, tmp_path).prepare(gemms, place, policy, arrived.append)
        assert preparation.wait(PATIENCE_S)
        return arrived, preparation.failures

    return call


def named_tests(kernel: Kernel) -> list[str]:
    evidence = kernel.manifest.certificate
    assert evidence is not None
    return [test["name"] for test in evidence["tests"]]


def test_a_kernel_is_rebuilt_certified_and_kept_apart(prepare: Prepare, tmp_path: Path) -> None:
    inner = PlainKernels(packed(ONE))
    source = DependentKernels(inner, tmp_path)
    assert isinstance(source, KernelSource)
    assert source.lookup(ONE, HOPPER) is None
    assert source.refusal(ONE, HOPPER, "tuned") is None, "what there is may be rebuilt"
    assert [*tmp_path.iterdir()] == []
    (kernel,), failures = prepare(inner, ONE, policy="tuned")
    plain = inner.kernels[ONE]
    assert failures == {}
    assert [bench.builder for bench in DependentBench.made] == [dependent_launch.BUILDER]
    assert (kernel.gemm, kernel.config, kernel.manifest.role) == (ONE, plain.config, "tuned")
    assert kernel.manifest.dependent_launch
    assert not plain.manifest.dependent_launch
    assert kernel.kernel_sha256 != plain.kernel_sha256
    assert named_tests(kernel) == ["exact", "chain"]
    assert kernel.manifest.certificate_fault == ""
    assert kernel.manifest.timings.of("sustained") is None
    assert not data_folder.database_file(tmp_path).exists()
    stored = source.lookup(ONE, HOPPER)
    assert stored is not None
    assert stored.artifact_sha256 == kernel.artifact_sha256
    again, _ = prepare(inner, ONE)
    assert [each.artifact_sha256 for each in again] == [kernel.artifact_sha256]
    assert len(DependentBench.made) == 1, "it was there"


def test_several_are_looked_up_with_one_question_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, asked = PlainKernels(packed(ONE)), list[Gemm]()
    lookup = inner.lookup

    def noted(gemm: Gemm, device: Device) -> Kernel | None:
        asked.append(gemm)
        if len(asked) > 2:
            raise ServiceUnreachable("gone")
        return lookup(gemm, device)

    monkeypatch.setattr(inner, "lookup", noted)
    source = DependentKernels(inner, tmp_path)
    results = lookup_all(source, [ONE, OTHER], HOPPER)
    assert results == {ONE: None, OTHER: None}, "none was rebuilt yet"
    assert source.refusal(ONE, HOPPER, "tuned") is None
    assert asked == [ONE, OTHER]
    results = lookup_all(source, [ONE, OTHER], HOPPER)
    assert {str(error) for error in results.values()} == {"gone"}
    assert len(asked) == 3


def test_one_that_cannot_be_read_is_no_answer_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = DependentKernels(PlainKernels(packed(ONE), packed(OTHER)), tmp_path)

    def kept(plain: Kernel) -> Kernel | None:
        if plain.gemm == ONE:
            raise InvalidRequest("signing.key cannot be read")
        return None

    monkeypatch.setattr(source, "_kept", kept)
    results = lookup_all(source, [ONE, OTHER], HOPPER)
    assert (str(results[ONE]), results[OTHER]) == ("signing.key cannot be read", None)


def test_a_set_is_rebuilt_member_by_member(prepare: Prepare) -> None:
    (kernel,), failures = prepare(PlainKernels(packed_set(OTHER, 8, 64)), OTHER)
    assert failures == {}
    assert [(each.gemm.m, str(each.config)) for each in kernel.manifest.members] == [
        (Range(1, 8), "sample(rows=8)"),
        (Range(9, 64), "sample(rows=64)"),
    ]
    assert kernel.manifest.dependent_launch
    assert named_tests(kernel) == ["exact", "chain"] * 2
    assert (kernel.manifest.certificate_fault, kernel.manifest.role) == ("", "fallback")


def test_what_the_other_source_has_not_it_makes_as_the_policy_says(prepare: Prepare) -> None:
    inner = PlainKernels(packed(ONE), makeable=[packed(OTHER, role="fallback")])
    kernels, failures = prepare(inner, ONE, OTHER, policy="shipped")
    assert ([kernel.gemm for kernel in kernels], failures, inner.asked) == ([ONE], {OTHER: "it was not tuned"}, [])
    kernels, failures = prepare(inner, ONE, OTHER)
    assert {kernel.gemm: kernel.manifest.role for kernel in kernels} == {ONE: "tuned", OTHER: "fallback"}
    assert (failures, inner.asked) == ({}, [OTHER])


def test_a_default_that_is_tuned_later_comes_twice(prepare: Prepare) -> None:
    inner = PlainKernels(packed(ONE, role="fallback"), makeable=[packed(ONE)])
    inner.tunes = True
    kernels, _ = prepare(inner, ONE)
    assert [kernel.manifest.role for kernel in kernels] == ["fallback", "tuned"]


@pytest.mark.parametrize(
    ("fate", "says"),
    [
        ("unbuildable", "the build process died"),
        ("wrong", "test exact failed: element"),
        ("overlaps", "test chain failed: other bits"),
        ("unchained", "its calls are launched dependently, and its certificate has no test chain"),
    ],
)
def test_one_that_fails_is_neither_served_nor_kept(
    fate: str, says: str, prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = PlainKernels(packed(ONE), packed(OTHER))
    bad = inner.kernels[ONE].config
    monkeypatch.setattr(DependentBench, "fates", staticmethod(lambda config: fate if config == bad else "right"))
    kernels, failures = prepare(inner, ONE, OTHER)
    assert [kernel.gemm for kernel in kernels] == [OTHER]
    assert list(failures) == [ONE]
    assert failures[ONE].startswith("its kernel for dependent launches: ")
    assert says in failures[ONE]
    assert DependentKernels(inner, tmp_path).lookup(ONE, HOPPER) is None


def test_a_failure_is_told_of_the_problem_that_was_asked_for(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the kernel of a wider range, or for less alignment, was to serve."""
    inner, asked = PlainKernels(packed(OTHER.with_(align=8))), (OTHER.with_(m=7), OTHER.with_(m=Range(2, 64)))
    (plain,) = inner.kernels.values()
    monkeypatch.setattr(inner, "lookup", lambda gemm, _device: None if gemm == ONE else plain)
    monkeypatch.setattr(DependentBench, "fates", staticmethod(lambda _config: "wrong"))
    kernels, failures = prepare(inner, ONE, *asked)
    assert kernels == []
    assert failures.keys() == {ONE, *asked}
    assert failures[ONE] == "it was not tuned"
    assert all("test exact failed" in failures[gemm] for gemm in asked)


def test_a_service_that_goes_away_before_kernels_are_rebuilt_is_waited_for_once(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, asked = PlainKernels(), list[Gemm]()

    def away(gemm: Gemm, _device: Device) -> None:
        asked.append(gemm)
        raise ServiceUnreachable("no answer")

    monkeypatch.setattr(inner, "lookup", away)
    kernels, failures = prepare(inner, ONE, OTHER)
    assert (kernels, failures) == ([], dict.fromkeys((ONE, OTHER), "no answer"))
    assert asked == [ONE]


def test_an_error_that_ends_it_leaves_the_other_source_at_no_work(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, begun = PlainKernels(packed(ONE)), Preparation((OTHER,))
    monkeypatch.setattr(inner, "refusal", lambda *_: None)
    monkeypatch.setattr(inner, "prepare", lambda *_: begun)
    monkeypatch.setattr(data_folder, "signer", lambda _: 1 / 0)
    kernels, failures = prepare(inner, ONE, OTHER)
    assert (kernels, failures) == ([], dict.fromkeys((ONE, OTHER), "division by zero"))
    assert begun.cancelled.is_set()


def test_rebuilt_an_invariant_kernel_gives_a_row_the_same_bits(prepare: Prepare) -> None:
    def evidence(signature: str) -> dict[str, Any]:
        test = {"name": "invariant", "passed": True, "signature": signature * 64}
        return {"kernel_sha256": "0" * 64, "passed": True, "tests": [test], "reference": "made up"}

    gemm = ONE.with_(invariant=True)
    kernels, _ = prepare(PlainKernels(packed(gemm, certificate=evidence("b"))), gemm)
    assert named_tests(kernels[0]) == ["exact", "invariant", "chain"]
    kernels, failures = prepare(PlainKernels(packed(gemm, certificate=evidence("a"), flags=("-O2",))), gemm)
    assert kernels == []
    assert "rebuilt it gives a row other bits" in failures[gemm]


def test_what_was_made_of_another_kernel_is_not_served(prepare: Prepare, tmp_path: Path) -> None:
    inner = PlainKernels(packed(ONE))
    prepare(inner, ONE)
    newer = PlainKernels(packed(ONE, flags=("-O2",)))
    assert DependentKernels(inner, tmp_path).lookup(ONE, HOPPER) is not None
    assert DependentKernels(newer, tmp_path).lookup(ONE, HOPPER) is None
    # Under the name of the newer one it is none of it either, where it is of another problem or damaged.
    file, other = (data_folder.dependent_file(tmp_path, each.kernels[ONE].kernel_sha256) for each in (inner, newer))
    other.write_bytes(file.read_bytes()[:-20])
    assert DependentKernels(newer, tmp_path).lookup(ONE, HOPPER) is None
    (kernel,), _ = prepare(PlainKernels(packed(OTHER)), OTHER)
    other.write_bytes(data_folder.dependent_file(tmp_path, load(packed(OTHER), trust=TRUST).kernel_sha256).read_bytes())
    assert DependentKernels(newer, tmp_path).lookup(ONE, HOPPER) is None
    assert kernel.gemm == OTHER


def test_a_kernel_that_is_launched_and_certified_so_already_is_taken_as_it_is(prepare: Prepare, tmp_path: Path) -> None:
    inner = PlainKernels(certified(ONE, "exact", "chain"), certified(OTHER, "exact"))
    assert DependentKernels(inner, tmp_path).lookup(ONE, HOPPER) is inner.kernels[ONE]
    assert prepare(inner, ONE)[0] == [inner.kernels[ONE]]
    assert DependentBench.made == []
    assert DependentKernels(inner, tmp_path).lookup(OTHER, HOPPER) is None
    (kernel,), _ = prepare(inner, OTHER)
    assert named_tests(kernel) == ["exact", "chain"]


def test_a_kernel_that_cannot_be_kept_is_used_all_the_same(
    prepare: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "dependent_launch").write_text("no folder")
    kernels, failures = prepare(PlainKernels(packed(ONE)), ONE)
    assert ([kernel.gemm for kernel in kernels], failures) == ([ONE], {})
    assert f"the kernel of {ONE} for dependent launches is not kept" in caplog.text


@pytest.mark.parametrize("place", ["cpu", "sm_80"])
def test_a_device_without_dependent_launch_is_named_with_the_limit(place: str, prepare: Prepare) -> None:
    inner, device = PlainKernels(packed(ONE)), detect(place)
    what = f"programmatic dependent launch needs a GPU of sm_90 or newer; {place} is "
    assert str(DependentKernels(inner).refusal(ONE, device, "default")).startswith(what)
    kernels, failures = prepare(inner, ONE, place=device)
    assert kernels == []
    assert failures[ONE].startswith(what)


def test_a_problem_whose_calls_cannot_be_chained_is_refused(prepare: Prepare) -> None:
    gemm = ONE.with_(out="f32")
    inner = PlainKernels(packed(gemm))
    assert "certified where D has the dtype of A" in prepare(inner, gemm)[1][gemm]
    assert DependentKernels(inner).refusal(gemm, HOPPER, "default") == prepare(inner, gemm)[1][gemm]


def test_cancelling_rebuilds_no_more(tmp_path: Path) -> None:
    arrived: list[Kernel] = []
    inner = PlainKernels(packed(ONE), packed(OTHER))
    source = DependentKernels(inner, tmp_path)

    def first(kernel: Kernel) -> None:
        arrived.append(kernel)
        preparation.cancel()

    preparation = source.prepare([ONE, OTHER], HOPPER, "default", first)
    assert preparation.wait(PATIENCE_S)
    assert len(arrived) == 1
