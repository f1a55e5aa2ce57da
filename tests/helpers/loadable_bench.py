"""A workbench whose builds are the sample kernel, which loads and computes, and whose times are made up."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from tests.helpers.artifact_samples import rows_binary, rows_launch
from tests.helpers.fake_workbench import FakeBench
from tirgemm.artifact import Signer
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.records.store import Store


class LoadableBench(FakeBench):
    """Made as a ``Workbench`` is."""

    def __init__(self, device: Device, store: Store, signer: Signer, *, lock_dir: Path | None = None) -> None:
        del lock_dir
        super().__init__(store=store)
        self.device, self.signer = device, signer
        store.put_device(device)

    def build(self, gemm: Gemm, config: Config, *, urgent: bool = False) -> Future[Binary]:
        del urgent
        future: Future[Binary] = Future()
        future.set_result(
            Binary(
                rows_binary(gemm) + config.digest.encode(), "so", rows_launch(gemm), {"kernel.ll": str(config)}, (), {}
            )
        )
        return future

    def close(self) -> None:
        """Nothing was started."""
