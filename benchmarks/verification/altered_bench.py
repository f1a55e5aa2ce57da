"""Building and packing of altered configs: the processes, the key, the packages."""

from __future__ import annotations

from concurrent.futures import Future
from types import TracebackType

from benchmarks.verification.altered import BUILDER, with_alteration
from benchmarks.verification.cases import Case
from tirgemm.artifact import Signer, Trust, pack
from tirgemm.device import Device
from tirgemm.tuning.compile import Binary
from tirgemm.tuning.pool import BuildPool


class AlteredBench:
    """Builds cases whose source is altered in ``processes`` processes, and signs them with a key of its own."""

    def __init__(self, device: Device, processes: int | None = None) -> None:
        self.device = device
        self.signer = Signer.generate()
        self.trust = Trust.of(self.signer.public)
        self._pool = BuildPool(device, processes, builder=BUILDER)

    def build(self, case: Case, alteration: str) -> Future[Binary]:
        """The case with its source altered; empty for the source as it is. The future raises BuildFailed."""
        return self._pool.submit(case.gemm, with_alteration(case.config, alteration))

    def package(self, case: Case, alteration: str, binary: Binary) -> bytes:
        """The signed artifact of a build, whose config names the alteration."""
        return pack(
            gemm=case.gemm, config=with_alteration(case.config, alteration),
            device=self.device.with_(uuid="", index=0, environment=()), launch=binary.launch, binary=binary.data,
            binary_format=binary.format, sources=binary.sources, flags=binary.flags, certificate=None, timings={},
            signer=self.signer,
        )  # fmt: skip

    def close(self) -> None:
        """Stop the build processes."""
        self._pool.close()

    def __enter__(self) -> AlteredBench:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
