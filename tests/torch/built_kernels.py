"""``BuiltKernels``: a source of default kernels of the real families, built side by side, not certified."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from tests.helpers.artifact_samples import SIGNER, TRUST
from tirgemm.artifact import Kernel, load, pack
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import BuildFailed, Unsupported
from tirgemm.families import supporting
from tirgemm.families.choice import ranked_defaults
from tirgemm.gemm import Gemm
from tirgemm.tuning.build.pool import BuildPool


class BuiltKernels:
    """A KernelSource. ``kernels`` are those that it made."""

    tunes = False

    def __init__(self, processes: int = 2, place: str = "cpu") -> None:
        self.device = detect_device(place)
        self.pool = BuildPool(self.device, processes)
        self.kernels: list[Kernel] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.pool.close()

    def lookup(self, gemm: Gemm, device: Device) -> Kernel | None:
        return next((k for k in self.kernels if k.gemm == gemm and k.device.key == device.key), None)

    def refusal(self, gemm: Gemm, device: Device, policy: str) -> str | None:
        if policy != "default":
            return "this source makes defaults alone"
        try:
            supporting(gemm, device)
        except Unsupported as error:
            return str(error)
        return None

    def prepare(self, gemms: Sequence[Gemm], device: Device, policy: str, arrived: Any) -> Any:
        from tirgemm.kernel_source import Preparation, run_in_background

        preparation = Preparation(tuple(gemms))

        def build() -> None:
            able = [gemm for gemm in gemms if self.refusal(gemm, device, policy) is None]
            configs = {
                gemm: ranked_defaults(supporting(gemm, device), gemm, device, "sustained")[0][1] for gemm in able
            }
            builds = {gemm: self.pool.submit(gemm, config) for gemm, config in configs.items()}
            named = device.with_(uuid="", index=0, environment=())
            for gemm, future in builds.items():
                try:
                    binary = future.result()
                except BuildFailed as error:
                    preparation.fail([gemm], str(error))
                    continue
                contents = binary.contents(gemm, configs[gemm], named)
                self.kernels.append(load(pack(contents, SIGNER), trust=TRUST))
                arrived(self.kernels[-1])

        return run_in_background(preparation, build, str)
