"""Limits, rates and occupancy of the architectures, against the vendor's published figures."""

from __future__ import annotations

import pytest

from tirgemm.errors import InvalidDevice
from tirgemm.gemm import DTYPE_BYTES
from tirgemm.hardware import ARCHITECTURES, arch_of, named_device, occupancy, peak_tflops


@pytest.mark.parametrize(
    ("arch", "key", "f32", "f16", "gbps"),
    [
        ("sm_80", "cuda:sm_80:nvidia-a100-sxm4-80gb:108", 19.5, 312, 2039),
        ("sm_86", "cuda:sm_86:nvidia-geforce-rtx-3090:82", 35.6, 71.2, 936),
        ("sm_89", "cuda:sm_89:nvidia-geforce-rtx-4090:128", 82.6, 165.2, 1008),
        # The data sheet's 989 TFLOP/s are at 1830 MHz, its 4.8 TB/s at 3125 MHz; these are at the highest clocks.
        ("sm_90a", "cuda:sm_90a:nvidia-h200:132", 66.9, 1070, 4917),
    ],
)
def test_named_devices_have_the_published_rates_and_stable_keys(
    arch: str, key: str, f32: float, f16: float, gbps: float
) -> None:
    device = named_device(arch)
    assert device.key == key
    assert not device.present
    assert device.name == arch
    rates = dict(device.peak_tflops)
    assert rates["f32"] == pytest.approx(f32, rel=0.01)
    assert rates["f16"] == pytest.approx(f16, rel=0.01)
    assert device.peak_gbps == pytest.approx(gbps, rel=0.01)
    assert set(DTYPE_BYTES) <= set(rates)


def test_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidDevice, match=r"'sm_75' .*cpu, cuda, cuda:N, sm_80, sm_86, sm_89, sm_90a"):
        named_device("sm_75")


def test_capabilities_map_to_architectures() -> None:
    assert [arch_of(a.capability) for a in ARCHITECTURES.values()] == list(ARCHITECTURES)
    assert arch_of((7, 5)) == "sm_75"
    assert peak_tflops("sm_75", 40, 1500) == ()


# (arch, threads, registers, shared) -> blocks, as NVIDIA's occupancy calculator has it.
@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks"),
    [
        ("sm_90a", 256, 128, 16640, 2),  # registers: exactly two blocks
        ("sm_90a", 256, 129, 16640, 1),  # one register more is eight
        ("sm_90a", 256, 32, 0, 8),  # threads
        ("sm_90a", 32, 16, 0, 32),  # blocks
        ("sm_86", 32, 16, 0, 16),
        ("sm_89", 32, 16, 0, 24),
        ("sm_86", 512, 32, 0, 3),  # 1536 threads an SM
        ("sm_90a", 128, 32, 232448, 1),  # all that a block may opt in to
        ("sm_90a", 128, 32, 232449, 0),
        ("sm_90a", 128, 32, 115712, 2),  # with the kilobyte that the driver keeps of each
        ("sm_90a", 128, 32, 115713, 1),
        ("sm_80", 128, 32, 82944, 2),
        ("sm_80", 128, 32, 82945, 1),
        ("sm_90a", 96, 168, 0, 4),  # three warps fit each of four schedulers
        ("sm_90a", 1024, 64, 0, 1),
        ("sm_90a", 1024, 65, 0, 0),
        ("sm_90a", 1025, 16, 0, 0),
        ("sm_90a", 0, 16, 0, 0),
        ("sm_90a", 32, 256, 0, 0),
    ],
)
def test_occupancy_is_the_calculators(arch: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    assert occupancy(named_device(arch).limits, threads, registers, shared) == blocks
