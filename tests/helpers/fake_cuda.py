"""A process that believes it has GPUs: it loads fake_cuda.c as libcuda.so.1 and runs what tests send it.

``python -m tests.helpers.fake_cuda FOLDER`` is that process; ``FakeCuda`` starts it and talks to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE_S

SOURCE = Path(__file__).with_name("fake_cuda.c")
ROOT = Path(__file__).parent.parent.parent


def compile_driver(folder: Path) -> None:
    """The fake driver as ``libcuda.so.1`` in ``folder``."""
    import nvidia
    from tvm_ffi import libinfo

    cuda = Path(next(iter(nvidia.__path__)), "cu13", "include")
    includes = [f"-I{path}" for path in (cuda, libinfo.find_include_path(), libinfo.find_dlpack_include_path())]
    command = ["gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
    subprocess.run([*command, *includes, str(SOURCE), "-o", str(folder / "libcuda.so.1")], check=True)


class FakeCuda:
    """The process, from the outside."""

    def __init__(self, folder: Path) -> None:
        compile_driver(folder)
        environment = os.environ | {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.fake_cuda", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )

    def run(self, code: str, **environment: str) -> Any:
        """Run ``code`` there, with variables of the fake driver set; the value of ``result`` and what was recorded."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"code": code, "environment": environment}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process with the fake driver died"
        document = json.loads(answer)
        assert "failed" not in document, document["failed"]
        return document["result"], document["events"]

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


class CudaTensor:
    """An array on a GPU that is not there: DLPack metadata over an address."""

    # DLPack consumers may look at the metadata after this object is gone.
    _alive: list[Any] = []

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: str = "f16",
        strides: tuple[int, ...] | None = None,
        address: int = 0x10000,
        device: int = 0,
        device_type: int = 2,
    ) -> None:
        from tirgemm.artifact.arrays import dense

        code, bits = {"f16": (2, 16), "bf16": (4, 16), "f32": (2, 32), "i32": (0, 32)}[dtype]
        self.shape = shape
        self._dims = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = (ctypes.c_int64 * len(shape))(*(dense(shape) if strides is None else strides))
        self._managed = _Managed(
            _DLTensor(
                address,
                device_type,
                device,
                len(shape),
                code,
                bits,
                1,
                ctypes.cast(self._dims, ctypes.c_void_p),
                ctypes.cast(self._strides, ctypes.c_void_p),
                0,
            )
        )

        self._alive.append((self._managed, self._dims, self._strides))

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._managed.tensor.device_type, self._managed.tensor.device_id

    def __dlpack__(self, **options: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._managed), b"dltensor", None)


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


@contextlib.contextmanager
def framework_allocator(library: ctypes.CDLL) -> Iterator[None]:
    """What tvm_ffi does around a call with PyTorch tensors: the framework's allocator is known to the thread."""
    from tvm_ffi import libinfo

    ffi = ctypes.CDLL(libinfo.find_libtvm_ffi())
    setter = ffi.TVMFFIEnvSetDLPackManagedTensorAllocator
    setter(library.fake_framework_allocator, 0, None)
    try:
        yield
    finally:
        setter(None, 0, None)


def on_thread(work: Any) -> None:
    """Run ``work`` on a thread that has no context, and raise what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def serve(folder: Path) -> None:
    library = ctypes.CDLL(str(folder / "libcuda.so.1"))
    log = Path(tempfile.mkstemp(dir=folder)[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        os.environ.update(request["environment"])
        library.fake_log_to(str(log).encode())
        names = {"driver": library, "CudaTensor": CudaTensor, "on_thread": on_thread, "allocator": framework_allocator}
        scope: dict[str, Any] = {"result": None, **names}
        try:
            exec(request["code"], scope)
            library.fake_log_flush()
            answer = {
                "result": scope["result"],
                "events": [json.loads(event) for event in log.read_text().splitlines()],
            }
        except BaseException:
            answer = {"failed": traceback.format_exc()}
        for name in request["environment"]:
            del os.environ[name]
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
