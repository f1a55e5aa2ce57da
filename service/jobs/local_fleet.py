"""``LocalFleet``: an engine for every device of this host that a worker serves, with build processes that all share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tirgemm.artifact.sign import Signer
from tirgemm.detect import devices
from tirgemm.device import Device
from tirgemm.service.jobs.engine import TunerImports, TuningEngine
from tirgemm.tuning.build.prepared import PreparedBuilds
from tirgemm.tuning.build.processes import BuildProcesses
from tirgemm.tuning.records.store import Store
from tirgemm.tuning.workbench import Workbench

# What measures when its job is cancelled mostly ends within this. To kill the process costs the next job seconds: on a
# GPU it imports, makes a context and compiles anew.
CANCEL_GRACE_SECONDS = 0.5


class LocalFleet:
    """Engines of ``served`` (default: every device of this host), each with its measuring process.

    ``processes`` build for all of them (default: one a usable hardware thread). Where the CPU is one of them nothing
    builds while something is measured on it.
    """

    def __init__(
        self,
        store: Store,
        signer: Signer,
        lock_dir: Path | None = None,
        processes: int | None = None,
        served: Sequence[Device] | None = None,
    ) -> None:
        self._store = store
        self._signer = signer
        self._lock_dir = lock_dir
        chosen = devices() if served is None else served
        cpu_lock = next((device.lock_key for device in chosen if device.kind == "cpu"), "")
        gpu = next((device for device in chosen if device.kind == "cuda"), None)
        self._builds = BuildProcesses(processes, cpu_lock=cpu_lock, lock_dir=lock_dir, rehearsed=gpu)
        imports = TunerImports()
        # Beside a CPU every build keeps that from being measured on: none is begun before it is needed.
        self._prepared = {} if cpu_lock else {device.key: PreparedBuilds(device, self._builds) for device in chosen}
        self._engines = [
            TuningEngine(device, self._open_bench, imports, self.engines, self._prepared.get(device.key))
            for device in chosen
        ]

    def engines(self) -> list[TuningEngine]:
        return self._engines

    def close(self) -> None:
        for engine in self._engines:
            engine.close()
        for prepared in self._prepared.values():
            prepared.close()
        self._builds.close()

    def _open_bench(self, device: Device) -> Workbench:
        bench = Workbench(device, self._store, self._signer, lock_dir=self._lock_dir, processes=self._builds)
        if bench.measurer is not None:
            bench.measurer.grace_s = CANCEL_GRACE_SECONDS
        return bench
