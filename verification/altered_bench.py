"""The build pool for mutated configs: processes, cache keys, packages."""

from __future__ import annotations

from concurrent.futures import Future

from tirgemm.artifact import Signer, Trust, pack
from tirgemm.artifact.closing import Closing
from tirgemm.device import Device
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.build.pool import BuildPool
from verification.altered import BUILDER, with_alteration
from verification.cases import Case


class AlteredBench(Closing):
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
            binary.contents(
                case.gemm, with_alteration(case.config, alteration), self.device.with_(uuid="", index=0, environment=())
            ),
            self.signer,
        )

    def close(self) -> None:
        """Stop the build processes."""
        self._pool.close()
