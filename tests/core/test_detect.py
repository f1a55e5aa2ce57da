# ruff: noqa: N802  (the fake driver has the names of the real one)
"""Detection from faked /proc, cgroup and drivers: what a device is must not depend on what this machine has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tirgemm import detect, detect_cpu, detect_cuda
from tirgemm.errors import DeviceUnavailable, DoesNotFit, InvalidDevice
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device


class _Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100


class FakeDriver:
    """As much of cuda.bindings.driver as detection uses, for H200s."""

    attributes = {
        "COMPUTE_CAPABILITY_MAJOR": 9,
        "COMPUTE_CAPABILITY_MINOR": 0,
        "MULTIPROCESSOR_COUNT": 132,
        "CLOCK_RATE": 1980000,
        "MEMORY_CLOCK_RATE": 3201000,
        "GLOBAL_MEMORY_BUS_WIDTH": 6144,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
        "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024,
        "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
        "MAX_THREADS_PER_BLOCK": 1024,
        "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
        "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
        "L2_CACHE_SIZE": 62914560,
    }

    def __init__(self, count: int = 2, start: int = 0) -> None:
        self.count, self.start = count, start
        names = {f"CU_DEVICE_ATTRIBUTE_{name}": name for name in self.attributes}
        self.CUdevice_attribute = SimpleNamespace(**names)

    def cuInit(self, _flags: int) -> tuple[Any]:
        return (_Status(self.start),)

    def cuDeviceGetCount(self) -> tuple[Any, int]:
        return _Status(0), self.count

    def cuDriverGetVersion(self) -> tuple[Any, int]:
        return _Status(0), 13010

    def cuDeviceGet(self, index: int) -> tuple[Any, int]:
        return _Status(0), index

    def cuDeviceGetName(self, _size: int, _device: int) -> tuple[Any, bytes]:
        return _Status(0), b"NVIDIA H200" + b"\0" * 5

    def cuDeviceGetUuid(self, device: int) -> tuple[Any, Any]:
        return _Status(0), SimpleNamespace(bytes=bytes(range(device, device + 16)))

    def cuDeviceTotalMem(self, _device: int) -> tuple[Any, int]:
        return _Status(0), 150110011392

    def cuDeviceGetAttribute(self, which: str, _device: int) -> tuple[Any, int]:
        return _Status(0), self.attributes[which]


@pytest.fixture
def fresh() -> Iterator[None]:
    detect._detected.cache_clear()
    yield
    detect._detected.cache_clear()


@pytest.fixture
def h200s(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:  # noqa: ARG001
    monkeypatch.setattr(detect_cuda, "_driver", FakeDriver)


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:  # noqa: ARG001
    def missing() -> Any:
        raise DeviceUnavailable("the NVIDIA driver (libcuda.so.1) is not installed")

    monkeypatch.setattr(detect_cuda, "_driver", missing)


@pytest.mark.usefixtures("no_driver")
def test_machine_without_driver_has_just_the_cpu_and_says_why() -> None:
    assert [d.kind for d in detect.devices()] == ["cpu"]
    assert detect.device().kind == "cpu"
    with pytest.raises(
        DeviceUnavailable, match=r"cuda:3 is not on this machine: the NVIDIA driver .* is not installed"
    ):
        detect.device("cuda:3")


@pytest.mark.usefixtures("h200s")
def test_detected_gpu_shares_the_named_ones_key_and_has_its_own_uuid() -> None:
    first, second = detect.devices()[1:]
    assert first.key == second.key == named_device("sm_90a").key == "cuda:sm_90a:nvidia-h200:132"
    assert first.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f" != second.uuid
    assert [first.name, second.name] == ["cuda:0", "cuda:1"]
    assert first.limits.l2_bytes == 62914560
    assert first.with_(limits=named_device("sm_90a").limits).limits.shared_per_block == first.limits.shared_per_block
    assert dict(first.environment)["cuda"] == "13.1"
    assert "driver" in dict(first.environment)
    assert detect.device() == detect.device("cuda") == detect.device("cuda:0") == first


class _NvmlError(Exception):
    """As pynvml.NVMLError."""


@pytest.mark.parametrize(("limit", "told"), [(700_000, 0), (450_000, 450), (None, 0)])
@pytest.mark.usefixtures("h200s")
def test_a_gpu_whose_power_is_limited_says_so(monkeypatch: pytest.MonkeyPatch, limit: int | None, told: int) -> None:
    def set_limit(_handle: str) -> int:
        if limit is None:
            raise _NvmlError
        return limit

    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.65",
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMaxClockInfo=lambda _handle, _kind: 1980,
        nvmlDeviceGetPowerManagementLimit=set_limit,
        nvmlDeviceGetPowerManagementDefaultLimit=lambda _handle: 700_000,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVMLError=_NvmlError,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpu = detect.device("cuda:0")
    assert gpu.power_limit_w == told
    assert gpu.key == "cuda:sm_90a:nvidia-h200:132" + (f":{told}w" if told else "")


@pytest.mark.usefixtures("h200s")
def test_a_gpu_is_found_by_its_uuid() -> None:
    second = detect.device("cuda:1")
    assert detect.gpu_of(second.uuid) == second
    with pytest.raises(DeviceUnavailable, match="GPU-7 is not visible"):
        detect.gpu_of("GPU-7")


@pytest.mark.usefixtures("h200s")
def test_gpu_beyond_the_last_one_is_unavailable() -> None:
    with pytest.raises(DeviceUnavailable, match=r"cuda:2.*2 CUDA devices"):
        detect.device("cuda:2")


@pytest.mark.usefixtures("h200s")
def test_named_architecture_stays_named_where_such_a_gpu_is_present() -> None:
    assert not detect.device("sm_90a").present


def test_driver_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    monkeypatch.setattr(bindings, "driver", FakeDriver(start=100), raising=False)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings.driver)
    with pytest.raises(DeviceUnavailable, match=r"CUDA_ERROR_NO_DEVICE \(100\)"):
        detect_cuda._driver()


def test_no_visible_gpu_is_not_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect_cuda, "_driver", lambda: FakeDriver(count=0))
    with pytest.raises(DeviceUnavailable, match="CUDA_VISIBLE_DEVICES"):
        detect_cuda.describe_all(())


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:٣", "sm_75", "CPU", "cuda:12345"])
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InvalidDevice, match="cpu, cuda, cuda:N, sm_80"):
        detect.device(name)


def test_device_that_is_not_a_name_is_refused() -> None:
    with pytest.raises(InvalidDevice, match="3"):
        detect.device(cast(Any, 3))
    known = named_device("sm_80")
    assert detect.device(known) is known


def test_operands_must_fit_the_memory() -> None:
    gpu = named_device("sm_86")
    detect.check_fits(Gemm.parse("65536x65536x32768:f16"), gpu)
    with pytest.raises(DoesNotFit, match="RTX 3090"):
        detect.check_fits(Gemm.parse("65536x65536x131072:f16"), gpu)


def test_detection_imports_no_tvm() -> None:
    code = (
        "import sys; from tirgemm.detect import devices; devices(); sys.exit('tvm' in "
        "sys.modules or 'tvm_ffi' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- CPU ----------------------------------------------------------------------------------------

_V3 = "pni ssse3 sse4_1 sse4_2 popcnt cx16 avx avx2 fma f16c bmi1 bmi2 abm movbe"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("sse2", "x86-64"),
        ("pni ssse3 sse4_1 sse4_2 popcnt cx16 avx", "x86-64-v2"),
        (_V3, "x86-64-v3"),
        (_V3.replace(" fma", ""), "x86-64-v2"),
        (f"{_V3} avx512f", "x86-64-v3"),
        (f"{_V4} avx512_bf16", "x86-64-v4"),
    ],
)
def test_level_needs_every_feature_of_it(flags: str, level: str) -> None:
    assert detect_cpu.level_of(detect_cpu.features_of(frozenset(flags.split()))) == level


def test_features_have_llvms_names_in_order() -> None:
    features = detect_cpu.features_of(frozenset(f"{_V4} avx512_vnni amx_tile rdtscp".split()))
    assert list(features) == sorted(features)
    assert {"sse4.1", "lzcnt", "bmi", "avx512vnni"} <= set(features)
    assert not {"abm", "avx512_vnni", "amx_tile"} & set(features)


def test_cpu_is_described_from_proc(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        f"processor\t: 0\nmodel name\t: Some CPU @ 3.0GHz\nflags\t\t: {_V3}\n\nprocessor\t: 1\n"
    )
    (tmp_path / "meminfo").write_text("MemTotal:       16384 kB\nMemFree: 3 kB\n")
    cpu = detect_cpu.describe((), tmp_path, tmp_path / "cgroup")
    assert (cpu.arch, cpu.model, cpu.memory_bytes) == ("x86-64-v3", "Some CPU @ 3.0GHz", 16384 * 1024)
    assert cpu.key.startswith(f"cpu:x86-64-v3:some-cpu-3-0ghz:{cpu.units}:")
    assert cpu.uuid.startswith("cpu-")
    assert detect_cpu.describe((), tmp_path, tmp_path / "cgroup") == cpu


def _quota(group: str, quota: int) -> dict[str, str]:
    """The files of a group of cgroup v1."""
    return {f"{group}/cpu.cfs_quota_us": str(quota), f"{group}/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"self/cgroup": "0::/", "cpu.max": "150000 100000"}, 2),
        ({"self/cgroup": "0::/user.slice/job.scope", "cpu.max": "150000 100000"}, 2),
        ({"self/cgroup": "1:cpu:/x\n0::/user.slice/job.scope", "user.slice/job.scope/cpu.max": "100000 100000"}, 1),
        ({"self/cgroup": "0::/user.slice/job.scope", "user.slice/cpu.max": "250000 100000"}, 3),
        ({"self/cgroup": "0::/job", "job/cpu.max": "max 100000", "cpu.max": "400000 100000"}, 4),
        ({"self/cgroup": "0::/job", "other/cpu.max": "100000 100000"}, 8),
        ({"self/cgroup": "2:cpu,cpuacct:/slurm/job_7\n0::/"} | _quota("cpu/slurm/job_7", 250000), 3),
        ({"self/cgroup": "2:cpuacct,cpu:/slurm/job_7\n0::/"} | _quota("cpu/slurm", 100000) | _quota("cpu", 400000), 1),
        ({"self/cgroup": "3:cpuset:/a\n2:cpu:/b\n1:cpuacct:/c"} | _quota("cpu/a", 100000) | _quota("cpu/c", 100000), 8),
    ],
)
def test_cgroup_quota_caps_the_threads(
    files: dict[str, str], threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text + "\n")
    assert detect_cpu.usable_threads(tmp_path, tmp_path) == threads


@pytest.mark.parametrize(
    "name",
    [
        "memory.max",
        "memory/memory.limit_in_bytes",
        "system.slice/job.service/memory.max",
        "memory/slurm/job_7/memory.limit_in_bytes",
        "memory/slurm/memory.limit_in_bytes",
    ],
)
def test_cgroup_limit_caps_the_memory(name: str, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       16384 kB\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("4:memory:/slurm/job_7\n0::/system.slice/job.service\n")
    (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / name).write_text("4096\n")
    assert detect_cpu.memory_bytes(tmp_path, tmp_path) == 4096
    (tmp_path / name).write_text("max\n")
    assert detect_cpu.memory_bytes(tmp_path, tmp_path) == 16384 * 1024
