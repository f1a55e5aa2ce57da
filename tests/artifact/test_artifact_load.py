"""Loading: verified bytes only, on a machine that can run them, with what is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.helpers.artifact_samples import SIGNER, TRUST, cpu, fake_cubin, kernel, operands, packed, rows_launch
from tirgemm import detect_cpu
from tirgemm.artifact import Trust, build, load, loader, native, read
from tirgemm.errors import (
    CorruptArtifact,
    DeviceUnavailable,
    IncompatibleArtifact,
    InvalidRequest,
    MissingExtra,
    UntrustedArtifact,
)
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import DEPENDENT_LAUNCH, KernelLaunch, Launch, scalar_args, tensor_args

GEMM = Gemm(7, 9, 5, dtype="f32", align=4)


def right(loaded: Callable[..., Any]) -> bool:
    arrays, expected = operands(GEMM)
    return bool(np.array_equal(loaded(**arrays), expected))


def test_a_kernel_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "kernel.tirgemm"
    path.write_bytes(packed(GEMM))
    loaded = load(path, trust=TRUST)
    package = read(str(path), TRUST)
    assert right(loaded)
    assert (loaded.gemm, loaded.config, loaded.device) == (GEMM, package.manifest.config, cpu())
    assert loaded.kernel_sha256 == package.manifest.kernel_sha256
    assert loaded.artifact_sha256 == package.sha256
    assert "7x9x5:f32:nt:align=4" in repr(loaded)


UNCHAINED = "its calls are launched dependently, and its certificate has no test chain"


@pytest.mark.parametrize(
    ("dependent", "evidence", "fault"),
    [
        ((0, 1), ["exact"], ""),
        ((1, 1), ["exact", "chain"], ""),
        ((1, 1), ["exact"], UNCHAINED),
        ((1, 0), ["exact"], UNCHAINED),
        ((2,), ["exact"], UNCHAINED),
        ((1, 0), ["exact", "chain"], ""),
    ],
)
def test_dependent_launches_are_told_and_need_chains(
    dependent: tuple[int, ...], evidence: list[str], fault: str
) -> None:
    gemm = Gemm.parse("7x9x5:f32:nn")
    kernels = tuple(
        KernelLaunch(f"kernel{number}", (), attributes=((DEPENDENT_LAUNCH[0], each),))
        for number, each in enumerate(dependent)
    )
    about: dict[str, Any] = {"device": named_device("sm_90a"), "binary": fake_cubin(), "binary_format": "cubin"}
    about["launch"] = Launch(tensor_args(gemm), scalar_args(gemm), kernels)
    sha256 = read(packed(gemm, **about), TRUST).manifest.kernel_sha256
    tests = [{"name": name, "passed": True} for name in evidence]
    about["certificate"] = {"kernel_sha256": sha256, "passed": True, "tests": tests}
    manifest = read(packed(gemm, **about), TRUST).manifest
    assert (manifest.dependent_launch, manifest.certificate_fault) == (bool(dependent[0]), fault)


def test_a_file_swapped_after_the_check_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kernel.tirgemm"
    path.write_bytes(packed(GEMM))

    def verify_then_swap(artifact: Path, trust: Trust | None) -> object:
        package = read(artifact, trust)
        path.write_bytes(b"something else")
        return package

    monkeypatch.setattr(loader, "read", verify_then_swap)
    loaded = load(path, trust=TRUST)
    path.unlink()
    assert right(loaded)


def test_the_running_copy_cannot_be_written_by_this_process_either() -> None:
    loaded = kernel(GEMM)
    mapped = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "tirgemm-kernel" in line]
    assert mapped
    for addresses in mapped:
        copy = Path("/proc/self/map_files", addresses)
        with pytest.raises(PermissionError), copy.open("r+b", buffering=0) as file:
            file.write(b"nothing")
    assert right(loaded)


def test_bytes_may_be_any_of_pythons_and_what_is_neither_they_nor_a_path_is_refused() -> None:
    data = packed(GEMM)
    for given in (bytearray(data), memoryview(data)):
        assert right(load(given, trust=TRUST))
    for odd in (3, None, [data], np.frombuffer(data, np.uint8)):
        with pytest.raises(InvalidRequest, match=rf"artifact is a {type(odd).__name__}; give its bytes, or the path"):
            load(cast(Any, odd), trust=TRUST)


def test_the_default_trust_is_the_users_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(UntrustedArtifact, match="trusted_keys does not hold"):
        load(packed(GEMM))
    Trust.default().add(SIGNER.public)
    assert right(load(packed(GEMM)))


def test_features_that_this_cpu_lacks_are_named() -> None:
    beyond = cpu().with_(features=(*cpu().features, "avx1024", "amx-fp4"))
    artifact = packed(GEMM, device=beyond)
    with pytest.raises(IncompatibleArtifact, match=r"lacks: amx-fp4, avx1024; tune it here"):
        load(artifact, trust=TRUST)
    assert right(load(artifact, trust=TRUST, check_device=False))


def test_a_kernel_for_another_kind_of_processor_is_named() -> None:
    artifact = packed(GEMM, device=cpu().with_(arch="aarch64", features=()))
    with pytest.raises(IncompatibleArtifact, match=f"built for aarch64; this CPU is {cpu().arch}"):
        load(artifact, trust=TRUST)


def test_the_launcher_itself_refuses_a_feature_that_it_knows() -> None:
    lacking = [name for name in ("avx512bf16", "avx512f", "avx2") if name not in detect_cpu.describe(()).features]
    if not lacking:
        pytest.skip("this CPU has every feature that the launcher knows")
    artifact = packed(GEMM, device=cpu().with_(features=tuple(lacking)))
    with pytest.raises(IncompatibleArtifact, match=f"CPU lacks: {lacking[0]}"):
        load(artifact, trust=TRUST, check_device=False)


def test_the_launcher_knows_every_feature_that_is_detected(tmp_path: Path) -> None:
    main = """
#include <cstdio>
void tirgemm::Throw(Fault, const std::string&) { throw 0; }
int main() { for (const auto& [name, has] : tirgemm::KnownCpuFeatures()) std::printf("%s %d\\n", name.c_str(), has); }
"""
    (tmp_path / "features.cc").write_text(f'#include "{build.SOURCES}/cpu_features.cc"\n{main}')
    command = [
        "g++",
        "-std=c++17",
        f"-I{build.SOURCES}",
        str(tmp_path / "features.cc"),
        "-o",
        str(tmp_path / "features"),
    ]
    subprocess.run(command, check=True)
    shown = subprocess.run([str(tmp_path / "features")], capture_output=True, text=True, check=True).stdout
    here, known = cpu(), dict(line.split() for line in shown.splitlines())
    features = detect_cpu._FEATURES.values() if here.arch.startswith("x86-64") else ()
    assert known == {name: str(int(name in here.features)) for name in features}


def test_without_a_driver_a_cubin_loads_and_the_call_says_what_is_missing() -> None:
    from tests.helpers.fake_cuda import CudaTensor

    if native.cuda_architectures():
        pytest.skip("this machine has an NVIDIA driver")
    gemm = Gemm(7, 9, 5)
    artifact = packed(
        gemm, device=named_device("sm_90a"), launch=rows_launch(gemm), binary=fake_cubin(), binary_format="cubin"
    )
    loaded = load(artifact, trust=TRUST)
    tensors = [
        CudaTensor(shape, address=address)
        for shape, address in (((7, 5), 1 << 20), ((9, 5), 1 << 21), ((7, 9), 1 << 22))
    ]
    with pytest.raises(DeviceUnavailable, match="NVIDIA driver"):
        loaded.raw(*tensors)


def test_a_shared_object_that_does_not_load_is_corrupt() -> None:
    broken = b"\x7fELF\x02\x01\x01" + bytes(11) + (62).to_bytes(2, "little") + bytes(100)
    with pytest.raises(CorruptArtifact, match="does not load"):
        load(packed(GEMM, binary=broken), trust=TRUST)


def test_a_launcher_that_was_not_built_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    native.library.cache_clear()
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "_launcher.so")
    try:
        words = rf"{tmp_path}/_launcher\.so is not built.*python -m tirgemm\.artifact\.build"
        with pytest.raises(MissingExtra, match=words):
            load(packed(GEMM), trust=TRUST)
    finally:
        native.library.cache_clear()


def test_a_missing_package_is_named_with_its_extra() -> None:
    code = """
import sys
sys.modules["tvm_ffi"] = None
from tirgemm.artifact import native
from tirgemm.errors import MissingExtra
try:
    native.tvm_ffi()
except MissingExtra as error:
    print(error)
sys.modules["cryptography.hazmat.primitives.asymmetric.ed25519"] = None
from tirgemm.artifact import Signer
try:
    Signer.generate()
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install 'tirgemm[client]'") == 2


@pytest.mark.also_torch
def test_importing_the_package_imports_none_of_its_libraries() -> None:
    code = (
        "import sys, tirgemm.artifact; "
        "print([m for m in ('numpy', 'torch', 'tvm', 'tvm_ffi', 'cryptography', 'tirgemm.tuning') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
