"""Which family's default is served, and problems, families and devices that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.helpers.command_line import own_folders
from tests.helpers.fake_workbench import FakeBench
from tests.tuning.tune.small_search import GEMM, REGIME, tuning
from tirgemm import Gemm
from tirgemm._user_folders import user_data
from tirgemm.artifact.signing_keys import SigningKeys
from tirgemm.errors import (
    BuildersUnusable,
    BuildFailed,
    DeviceUnavailable,
    InvalidRequest,
    RevokedKernel,
    StoreUnavailable,
    Unsupported,
)
from tirgemm.families.choice import next_best, ranked_defaults
from tirgemm.hardware import named_device
from tirgemm.tuning.tune import NEXT_BEST, Tuning

pytestmark = pytest.mark.usefixtures("all_scored")


def test_a_named_device_is_built_for_but_not_tuned_on() -> None:
    bench = FakeBench()
    bench.device = named_device("sm_80")
    with pytest.raises(DeviceUnavailable, match="only named"):
        tuning(bench).run()
    record = tuning(bench).cross_compile()
    assert record.role == "unverified"
    assert record.certificate is None
    assert bench.store.kernel(GEMM, bench.device.key, REGIME) is None


def test_another_familys_default_is_built_where_the_first_does_not_build() -> None:
    bench = FakeBench()
    bench.device = named_device("sm_80")
    (first, config), (second, other), *_ = ranked_defaults(tuning(bench).families, GEMM, bench.device, REGIME)
    bench.fate = lambda config: "unbuildable" if config.family == first.name else "right"
    record = tuning(bench).cross_compile()
    assert (record.config, record.role) == (other, "unverified")
    assert bench.built == [config, other]
    assert record.timings.predicted_us == second.predict_us(GEMM, other, bench.device, REGIME)
    bench.fate = lambda _config: "unbuildable"
    with pytest.raises(BuildFailed, match=f"no default of {GEMM} on sm_80 works"):
        tuning(bench).cross_compile()


@pytest.mark.parametrize("first_builds", [True, False])
@pytest.mark.parametrize(
    "error",
    [DeviceUnavailable("GPU-1 cannot be opened"), StoreUnavailable("no answer"), BuildersUnusable("no space left")],
)
def test_what_says_nothing_of_a_default_is_not_asked_of_another_familys(
    monkeypatch: pytest.MonkeyPatch, error: Exception, first_builds: bool
) -> None:
    bench = FakeBench()
    bench.device = named_device("sm_80").with_(uuid="GPU-1")
    first, second, *_ = [config for _, config in ranked_defaults(tuning(bench).families, GEMM, bench.device, REGIME)]
    bench.fate = lambda config: "right" if first_builds or config != first else "unbuildable"

    def verify(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(bench.fake, "verify", verify)
    with pytest.raises(type(error)) as raised:
        tuning(bench).fallback()
    assert raised.value is error
    assert bench.built == ([first] if first_builds else [first, second])


def test_the_next_best_config_stands_in_the_place_of_a_revoked_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_folders(tmp_path, monkeypatch)
    bench, keys = FakeBench(), SigningKeys(user_data())
    families = tuning(bench).families
    choices = [
        ranked_defaults(families, GEMM, bench.device, REGIME)[0][1],
        *next_best(families, GEMM, bench.device, REGIME, NEXT_BEST),
    ]
    assert len({(config["tile_m"], config["block_m"], config["block_n"]) for config in choices[:4]}) == 4
    for config in choices:
        record = tuning(bench).fallback()
        assert (record.config, record.role) == (config, "fallback")
        keys.revoke(record.kernel_sha256)
    with pytest.raises(RevokedKernel, match=f"no default of {GEMM} on .* works"):
        tuning(bench).fallback()


def test_where_a_default_fails_otherwise_no_other_config_of_its_family_is_built() -> None:
    bench = FakeBench(fate=lambda _config: "unbuildable")
    with pytest.raises(BuildFailed, match=f"no default of {GEMM} on .* works"):
        tuning(bench).fallback()
    assert len(bench.built) == 1


@pytest.mark.parametrize(
    ("options", "error"), [({"families": ["simt"]}, InvalidRequest), ({"families": ["what"]}, InvalidRequest)]
)
def test_families_that_cannot_are_refused_by_name(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"simt|what"):
        tuning(FakeBench(), **options)


def test_an_unknown_regime_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'warm'"):
        Tuning(GEMM, FakeBench(), cast(Any, "warm"))


def test_a_problem_that_no_family_writes_says_every_reason() -> None:
    with pytest.raises(Unsupported, match=r"x86: .*simt: "):
        Tuning(Gemm.parse("64x64x64:f16:nt:acc=f16"), FakeBench(), REGIME)
