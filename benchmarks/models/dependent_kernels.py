"""Kernels built again for programmatic dependent launch, side by side."""

from __future__ import annotations

from collections.abc import Mapping

from tirgemm.artifact import Kernel, Signer, Trust, load, pack
from tirgemm.device import Device
from tirgemm.errors import TirgemmError
from tirgemm.gemm import Gemm
from tirgemm.tuning.build import dependent_launch
from tirgemm.tuning.build.pool import BuildPool


def dependent_kernels(kernels: Mapping[Gemm, Kernel], device: Device) -> tuple[dict[Gemm, Kernel], dict[Gemm, str]]:
    """The same configs for dependent launches, not certified, and why those that failed did."""
    signer = Signer.generate()
    named = device.with_(uuid="", index=0, environment=())
    made: dict[Gemm, Kernel] = {}
    failures: dict[Gemm, str] = {}
    with BuildPool(device, builder=dependent_launch.BUILDER) as pool:
        builds = {gemm: pool.submit(gemm, kernel.config) for gemm, kernel in kernels.items()}
        for gemm, build in builds.items():
            kernel = kernels[gemm]
            try:
                role = kernel.manifest.role or "unverified"
                contents = build.result().contents(gemm, kernel.config, named, selected=("sustained", role))
                made[gemm] = load(pack(contents, signer), trust=Trust.of(signer.public))
            except TirgemmError as error:
                failures[gemm] = str(error)
    return made, failures
