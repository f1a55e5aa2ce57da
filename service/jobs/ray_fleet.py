"""``RayFleet``: an engine for every device of a Ray cluster; nodes may come and go."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.job_config import JobConfig

from tirgemm.artifact.sign import Signer
from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, InvalidRequest
from tirgemm.service.jobs.engine import TunerImports, TuningEngine
from tirgemm.service.jobs.ray_builds import RayBuilds
from tirgemm.service.jobs.ray_measuring import NodeDevice, RemoteMeasuring
from tirgemm.tuning.measure.measurer import MeasuringProcess
from tirgemm.tuning.records.store import Store
from tirgemm.tuning.workbench import Workbench

logger = logging.getLogger("tirgemm.worker")

CONNECT_SECONDS = 5.0
# How long the devices that are there at the start are awaited.
START_SECONDS = 60.0
# Where a device is: the node, its kind, and which of the node's of that kind.
_ActorPlace = tuple[str, str, int]


class RayEngine(TuningEngine):
    """A TuningEngine whose device is on a node, and may be lost with it."""

    def __init__(self, place: NodeDevice, fleet: RayFleet, imports: TunerImports) -> None:
        super().__init__(place.device, lambda device: fleet.open_bench(device, place), imports, fleet.siblings)
        self.place = place

    def devices(self) -> list[Device]:
        return [] if self.place.lost else super().devices()

    def close(self) -> None:
        super().close()
        self.place.close()


class RayFleet:
    """Engines of the devices of ``kinds`` on all nodes of the cluster at ``address``.

    The searches run in this process, which is the worker: records and jobs are the database's alone. Raises
    InvalidRequest, and DeviceUnavailable where there is no such cluster.
    """

    def __init__(
        self, store: Store, signer: Signer, address: str, *, kinds: Sequence[str], lock_dir: Path | None = None
    ) -> None:
        self._store = store
        self._signer = signer
        self._kinds = kinds
        self._lock_dir = lock_dir
        _require_listener(address)
        job = JobConfig(_client_job=True)  # of another, actors and tasks import from the folder of this process first
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING, "configure_logging": False}
        try:
            ray.init(address=address, job_config=job, **quiet)
        except (RayError, ConnectionError, ValueError, RuntimeError) as error:
            raise DeviceUnavailable(f"what listens at {address} is no Ray cluster: {error}") from error
        self._builds = RayBuilds(lock_dir)
        self._imports = TunerImports()
        self._engines: dict[_ActorPlace, RayEngine] = {}
        self._starting: dict[_ActorPlace, NodeDevice] = {}
        self.engines()
        for starting in list(self._starting.values()):
            starting.wait(START_SECONDS)

    def engines(self) -> list[TuningEngine]:
        """Those of the nodes that are alive now and have told of their devices; an engine whose node is lost is
        closed."""
        places = self._places()
        for place in [place for place, engine in self._engines.items() if place not in places or engine.place.lost]:
            self._engines.pop(place).close()
        for place in [place for place in self._starting if place not in places]:
            self._starting.pop(place).close()
        for place in places:
            if place not in self._engines:
                self._start(place)
        return list(self._engines.values())

    def _start(self, place: _ActorPlace) -> None:
        """Begin to start an engine, or go on with it."""
        node_id, kind, _ = place
        starting = self._starting.get(place) or NodeDevice(node_id, kind)
        self._starting[place] = starting
        try:
            if starting.ready():
                self._engines[place] = RayEngine(self._starting.pop(place), self, self._imports)
        except DeviceUnavailable as error:
            logger.warning("%s", error)
            self._starting.pop(place).close()

    def siblings(self) -> list[RayEngine]:
        """The engines that were there at the last look."""
        return list(self._engines.values())

    def open_bench(self, device: Device, place: NodeDevice) -> Workbench:
        """A workbench whose builds are anywhere in the cluster, and whose measuring process is at ``place``."""

        def start(_device: Device, lock_dir: Path) -> MeasuringProcess:
            return RemoteMeasuring(place, lock_dir)

        return Workbench(
            device,
            self._store,
            self._signer,
            lock_dir=self._lock_dir,
            processes=self._builds,
            start_measuring=start,
        )

    def close(self) -> None:
        """End the actors and leave the cluster, which goes on."""
        for engine in self._engines.values():
            engine.close()
        for starting in self._starting.values():
            starting.close()
        self._engines.clear()
        self._starting.clear()
        self._builds.close()
        ray.shutdown()

    def _places(self) -> list[_ActorPlace]:
        try:
            nodes: list[dict[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
        except RayError as error:
            raise DeviceUnavailable(f"the Ray cluster does not answer: {type(error).__name__}") from error
        places: list[_ActorPlace] = []
        for node in nodes:
            counts = {"cpu": 1, "cuda": int(node["Resources"].get("GPU", 0))}
            places += [(node["NodeID"], kind, number) for kind in self._kinds for number in range(counts[kind])]
        return places


def _require_listener(address: str) -> None:
    """Raise DeviceUnavailable where nothing listens: Ray would ask again for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidRequest(f"address is {address!r:.80}; that of a Ray cluster is HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise DeviceUnavailable(f"there is no Ray cluster at {address}: {error.strerror or error}") from error
