"""From an artifact to a callable: verify, check that this machine can run it, hand the bytes to the launcher."""

from __future__ import annotations

from tirgemm import detect_cpu
from tirgemm.artifact import native
from tirgemm.artifact.call import Kernel
from tirgemm.artifact.callable_class import callable_class
from tirgemm.artifact.manifest import Manifest
from tirgemm.artifact.native import LoadedFunctions
from tirgemm.artifact.package import ArtifactData, Package, read
from tirgemm.artifact.trust import Trust
from tirgemm.errors import IncompatibleArtifact, InvalidRequest

# The launcher reads no larger number.
_MOST_THREADS = 1 << 20


def load(
    artifact: ArtifactData, *, trust: Trust | None = None, check_device: bool = True, threads: int | None = None
) -> Kernel:
    """The kernel of an artifact, given as bytes or as a path.

    The file is read once; what was verified is what runs, whatever happens to the file meanwhile. ``trust`` is the
    user's trust file by default. ``threads`` caps those of its calls on a CPU, by default the environment's
    OMP_NUM_THREADS; 0: as many as this process may use. Raises InvalidRequest for other ``threads`` or another type of
    ``artifact``, UntrustedArtifact, CorruptArtifact, IncompatibleArtifact where this machine cannot run it
    (``check_device=False`` leaves that to the call), MissingExtra without apache-tvm-ffi.
    """
    package, functions = opened(artifact, trust, check_device=check_device, threads=threads)
    return callable_class()(package, functions)


def opened(
    artifact: ArtifactData, trust: Trust | None, *, check_device: bool = True, threads: int | None = None
) -> tuple[Package, LoadedFunctions]:
    """What ``Kernel`` is made of: the verified package, and the launcher's functions for it."""
    if threads is not None and (type(threads) is not int or not 0 <= threads <= _MOST_THREADS):
        raise InvalidRequest(f"threads is {threads!r:.80}; it must be None or an integer from 0 to {_MOST_THREADS}")
    package = read(artifact, trust)
    if check_device:
        check_runs_here(package.manifest)
    kernels = [kernel.kernel_json for kernel in package.manifest.kernels]
    return package, native.load(package.binaries, kernels, -1 if threads is None else threads)


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
