"""The fake CUDA driver answers whatever its process is asked by, as a driver does: with an error code, never a
crash."""

from __future__ import annotations

import pytest

from tests.helpers.fake_cuda import FakeCuda

INVALID_VALUE, INVALID_DEVICE, NOT_FOUND = 1, 101, 500

PRELUDE = """
import ctypes
driver.fake_entry.restype = ctypes.c_char_p
driver.fake_entry.argtypes = [ctypes.c_size_t]
look_up = driver.cuGetProcAddress_v2
look_up.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]

def function(name, *types):
    address = ctypes.c_void_p()
    assert look_up(name, ctypes.byref(address), 13000, 0, None) == 0
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(address.value)

result = []
"""


def test_a_symbol_is_looked_up_without_a_place_for_its_status(cuda: FakeCuda) -> None:
    code = """
for name in (b"cuInit", b"cuSomethingOfALaterDriver", b""):
    address = ctypes.c_void_p(1)
    result.append([look_up(name, ctypes.byref(address), 13000, 0, None), bool(address)])
"""
    assert cuda.run(PRELUDE + code)[0] == [[0, True], [NOT_FOUND, False], [NOT_FOUND, False]]


def test_the_status_says_whether_a_symbol_is_there_for_every_version_and_flag(cuda: FakeCuda) -> None:
    code = """
address, status = ctypes.c_void_p(), ctypes.c_int(-1)
for name in (b"cuInit", b"cuGetExportTable"):
    for version in (0, 12000, 13000, 99000, -1):
        for flags in (0, 1, 2, 1 << 40):
            code = look_up(name, ctypes.byref(address), version, flags, ctypes.byref(status))
            result.append([code, bool(address), status.value])
"""
    assert cuda.run(PRELUDE + code)[0] == [[0, True, 0]] * 20 + [[NOT_FOUND, False, 1]] * 20


@pytest.mark.parametrize("arguments", ["None, ctypes.byref(place)", 'b"cuInit", None', "None, None"])
def test_a_look_up_of_nothing_or_into_nothing_is_an_invalid_value(cuda: FakeCuda, arguments: str) -> None:
    code = f"place = ctypes.c_void_p()\nresult = look_up({arguments}, 13000, 0, None)"
    assert cuda.run(PRELUDE + code)[0] == INVALID_VALUE


def test_every_function_answers_null_pointers_with_an_error_code(cuda: FakeCuda) -> None:
    code = """
index = 0
while name := driver.fake_entry(index):
    result.append([name.decode(), function(name, *[ctypes.c_uint64] * 12)(*[0] * 12)])
    index += 1
"""
    answers = dict(cuda.run(PRELUDE + code)[0])
    without_pointers = {"cuInit", "cuCtxPushCurrent", "cuMemFreeAsync", "cuMemsetD8Async"}
    assert len(answers) == 20
    assert {name: answers[name] for name in without_pointers} == dict.fromkeys(without_pointers, 0)
    assert {answer for name, answer in answers.items() if name not in without_pointers} == {INVALID_VALUE}


def test_a_device_that_is_not_there_is_an_invalid_device(cuda: FakeCuda) -> None:
    code = """
place = ctypes.c_uint64()
for device in (0, 1, 2, 1000, -1):
    get = function(b"cuDeviceGet", ctypes.c_void_p, ctypes.c_int)(ctypes.byref(place), device)
    retain = function(b"cuDevicePrimaryCtxRetain", ctypes.c_void_p, ctypes.c_int)(ctypes.byref(place), device)
    attribute = function(b"cuDeviceGetAttribute", ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    major = attribute(ctypes.byref(place), 75, device)
    result.append([get, retain, major])
"""
    assert cuda.run(PRELUDE + code)[0] == [[0, 0, 0]] * 2 + [[INVALID_DEVICE] * 3] * 3


def test_contexts_without_end_are_an_error_and_not_an_abort(cuda: FakeCuda) -> None:
    code = """
push, pop = (function(name, ctypes.c_void_p) for name in (b"cuCtxPushCurrent", b"cuCtxPopCurrent"))
place = ctypes.c_void_p()
while pop(ctypes.byref(place)) == 0:
    pass
pushed = [push(None) for _ in range(1000)]
popped = [pop(ctypes.byref(place)) for _ in range(1000)]
result = [pushed.count(0), popped.count(0), pushed[-1] != 0, popped[-1] != 0]
"""
    pushed, popped, *refused = cuda.run(PRELUDE + code)[0]
    assert pushed == popped > 0
    assert refused == [True, True]


# The CUDA runtime's way in: PyTorch's CUDA builds call it when they are asked for the number of devices.
RUNTIME = """
import nvidia
from pathlib import Path
libraries = [path for folder in nvidia.__path__ for path in Path(folder, "cu13", "lib").glob("libcudart.so.*")]
runtime = ctypes.CDLL(str(libraries[0]))
place = (ctypes.c_char * 4096)()
for name in ("cudaGetDeviceCount", "cudaRuntimeGetVersion", "cudaDriverGetVersion", "cudaGetDevice",
             "cudaStreamCreate"):
    result.append(getattr(runtime, name)(place))
result.append(runtime.cudaGetDeviceProperties(place, 0))
result.append(runtime.cudaMalloc(place, ctypes.c_size_t(64)))
"""


def test_the_cuda_runtime_asks_for_devices_and_memory_and_gets_error_codes(cuda: FakeCuda) -> None:
    answers = cuda.run(PRELUDE + RUNTIME)[0]
    assert len(answers) == 7
    assert answers[0] != 0


@pytest.mark.torch
def test_pytorch_and_its_cuda_runtime_look_for_gpus_and_find_none(cuda: FakeCuda) -> None:
    code = """
import torch
result += [torch.cuda.is_available(), torch.cuda.device_count(), torch.ones(3).sum().item()]
"""
    answers = cuda.run(PRELUDE + RUNTIME + code)[0]
    assert answers[0] != 0
    assert answers[-3:] == [False, 0, 3.0]
