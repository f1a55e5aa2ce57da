"""From an artifact to a callable: verify, check that this machine can run it, hand the bytes to the launcher."""

from __future__ import annotations

from pathlib import Path

from tirgemm import detect_cpu
from tirgemm.artifact import native
from tirgemm.artifact.call import Kernel
from tirgemm.artifact.manifest import Manifest
from tirgemm.artifact.native import LoadedFunctions
from tirgemm.artifact.package import Package, read
from tirgemm.artifact.trust import Trust
from tirgemm.errors import IncompatibleArtifact


def load(artifact: bytes | Path | str, *, trust: Trust | None = None, check_device: bool = True) -> Kernel:
    """The kernel of an artifact, given as bytes or as a path.

    The file is read once; what was verified is what runs, whatever happens to the file meanwhile. ``trust`` is the
    user's trust file by default. Raises UntrustedArtifact, CorruptArtifact, IncompatibleArtifact where this machine
    cannot run it (``check_device=False`` leaves that to the call), MissingExtra without apache-tvm-ffi.
    """
    return Kernel(*opened(artifact, trust, check_device=check_device))


def opened(
    artifact: bytes | Path | str, trust: Trust | None, *, check_device: bool = True
) -> tuple[Package, LoadedFunctions]:
    """What ``Kernel`` is made of: the verified package, and the launcher's functions for it."""
    package = read(artifact, trust)
    if check_device:
        check_runs_here(package.manifest)
    return package, native.load(package.binaries, [kernel.kernel_json for kernel in package.manifest.kernels])


def check_runs_here(manifest: Manifest) -> None:
    """Raise IncompatibleArtifact naming what this machine lacks. A machine without a GPU is told at the call."""
    device = manifest.device
    if device.kind == "cpu":
        here = detect_cpu.describe(())
        if device.arch.startswith("x86-64") != here.arch.startswith("x86-64"):
            raise IncompatibleArtifact(f"the kernel was built for {device.arch}; this CPU is {here.arch}")
        missing = sorted(set(device.features) - set(here.features))
        if missing:
            raise IncompatibleArtifact(
                f"the kernel uses CPU features that this CPU ({here.model}) lacks: {', '.join(missing)}; tune it here"
            )
        return
    architectures = native.cuda_architectures()
    if architectures and not any(native.arch_runs_on(device.arch, arch) for arch in architectures):
        have = ", ".join(f"sm_{arch}" for arch in architectures)
        raise IncompatibleArtifact(f"the kernel was built for {device.arch}; the GPUs of this machine are {have}")
