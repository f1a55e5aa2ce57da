"""``LockedArtifacts``: exactly the kernels of a lock file, with or without the service."""

from __future__ import annotations

from pathlib import Path

from tirgemm import artifact
from tirgemm._client.arguments import device_name
from tirgemm._client.artifact_source import ArtifactSource
from tirgemm._client.lock_file import LockFile
from tirgemm._client.server_trust import ServerTrust
from tirgemm.artifact import Kernel
from tirgemm.device import Device
from tirgemm.gemm import regime_named


class LockedArtifacts:
    """What ``Client`` does with lock files. Methods raise InvalidRequest for what is no lock file, or has no such
    kernel."""

    _artifacts: ArtifactSource
    _server: ServerTrust

    def locked_kernel(
        self,
        lock: LockFile | str | Path,
        name: str,
        *,
        folder: str | Path | None = None,
        verify: bool = True,
        check_device: bool = True,
    ) -> Kernel:
        """The very kernel that a lock file has under ``name``, or for a problem in its text form, ready to call.

        It comes from ``folder``, the cache or the service, whichever has it first; where none has, or where another
        one is signed under that hash, it is refused with NotCached, ServiceError or MismatchedArtifact.
        """
        data = self.locked_package(lock, name, folder=folder, verify=verify)
        return artifact.load(data, trust=self._server.trust, check_device=check_device)

    def locked_package(
        self,
        lock: LockFile | str | Path,
        name: str,
        *,
        folder: str | Path | None = None,
        device: Device | str | None = None,
        regime: str | None = None,
        verify: bool = True,
    ) -> bytes:
        """The signed artifact that ``locked_kernel`` loads; ``device`` and ``regime`` choose where a problem is locked
        more than once."""
        read = lock if isinstance(lock, LockFile) else LockFile.read(Path(lock))
        kernel = read.named(
            name, None if device is None else device_name(device), None if regime is None else regime_named(regime)
        )
        return self._artifacts.locked(kernel, None if folder is None else Path(folder), verify=verify)
