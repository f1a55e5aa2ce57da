"""The whole way on the CPU: a config built in a build process, packed, verified and timed in the measuring process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tirgemm.artifact import Signer, pack
from tirgemm.config import Config
from tirgemm.detect import device as detect_device
from tirgemm.errors import BuildFailed
from tirgemm.families import supporting
from tirgemm.gemm import Gemm
from tirgemm.tuning.build.pool import BuildPool
from tirgemm.tuning.measure import Measurer

DEVICE = detect_device("cpu")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuildPool]:
    with BuildPool(DEVICE, 1, lock_dir=tmp_path_factory.mktemp("locks")) as pool:
        pool.warm()
        yield pool


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer.generate()


@pytest.fixture(scope="module")
def measurer(signer: Signer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measurer]:
    with Measurer(DEVICE, signer.public, lock_dir=Path(tmp_path_factory.mktemp("locks"))) as measurer:
        yield measurer


@pytest.mark.parametrize(
    "text",
    [
        "129x67x255:f16:nt",
        "1..77x61x130:f32:tn:alpha:beta:bias:act=gelu:batch=3",
        "47x129x65:f16:tt:lda=50:ldb=70:ldd=131:align=4:beta:out=f32",
        "33x35x300:bf16:nn:act=silu",
    ],
)
def test_a_default_is_built_verified_and_timed(pool: BuildPool, measurer: Measurer, signer: Signer, text: str) -> None:
    gemm = Gemm.parse(text)
    config = supporting(gemm, DEVICE)[0].default(gemm, DEVICE, "sustained")
    binary = pool.submit(gemm, config).result(120)
    package = pack(
        binary.contents(gemm, config, DEVICE),
        signer,
    )
    verification, samples = measurer.evaluate(package, "isolated")
    assert verification.passed, verification.tests
    assert samples is not None
    assert measurer.verify(package, level="certificate", seed=3).passed


def test_a_config_outside_its_space_is_a_failed_build(pool: BuildPool) -> None:
    gemm = Gemm.parse("129x67x255:f16:nt")
    with pytest.raises(BuildFailed, match="x86 has the knobs"):
        pool.submit(gemm, Config("x86", (("nonsense", 1),))).result(120)
