"""``Workbench``: what tuning on one device needs to hold: the build pool, the measuring process, the signer, the store.

Building and measuring cost seconds to start, so a worker keeps one workbench for all its jobs.
"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tirgemm.artifact import Signer, Trust, pack
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm
from tirgemm.tuning.measure import Measurer
from tirgemm.tuning.pool import BuildPool
from tirgemm.tuning.store import Store

if TYPE_CHECKING:
    from tirgemm.tuning.compile import Binary


class Workbench:
    """The long-lived means of tuning on one device.

    ``processes`` is the number of build processes (default: the usable hardware threads). ``lock_dir`` is where the
    host-wide device locks lie. The measuring process exists only where the device is present.
    """

    def __init__(
        self,
        device: Device,
        store: Store,
        signer: Signer | None = None,
        *,
        lock_dir: Path | None = None,
        processes: int | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self.device = device
        self.store = store
        self.signer = signer or Signer.generate()
        self.pool = BuildPool(device, processes=processes, lock_dir=lock_dir)
        self.measurer = (
            Measurer(device, Trust.of(self.signer.public), lock_dir=lock_dir, timeout_s=timeout_s)
            if device.present
            else None
        )
        store.put_device(device)

    def warm(self) -> None:
        """Start the build processes' imports in the background, so that the first request finds them ready."""
        self.pool.warm()

    def build(self, gemm: Gemm, config: Config) -> Future[Binary]:
        """Instantiate and compile one config in a build process. The future raises BuildFailed."""
        return self.pool.submit(gemm, config)

    def package(
        self,
        gemm: Gemm,
        config: Config,
        binary: Binary,
        *,
        certificate: dict[str, Any] | None = None,
        timings: dict[str, Any] | None = None,
    ) -> bytes:
        """The signed artifact of a build, with or without its evidence; the kernel part hashes the same either way."""
        return pack(
            gemm=gemm,
            config=config,
            # The class of devices that it runs on, not the one that it was built beside: one kernel has one hash.
            device=self.device.with_(uuid="", index=0, environment=()),
            launch=binary.launch,
            binary=binary.data,
            binary_format=binary.format,
            sources=binary.sources,
            flags=binary.flags,
            certificate=certificate,
            timings=timings or {},
            signer=self.signer,
        )

    def close(self) -> None:
        """Stop the build processes and the measuring process."""
        self.pool.close()
        if self.measurer is not None:
            self.measurer.close()

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
