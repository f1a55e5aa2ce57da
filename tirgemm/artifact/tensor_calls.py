"""Fast path of the launcher for PyTorch tensors, through their DLPack exchange functions.

They cost less than calls through tvm_ffi, answer with a result or with none, and raise nothing: where they do not take
the tensors nothing has run, and who asks tries the launcher's other functions, which say why.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from tirgemm.artifact import native
from tirgemm.artifact.native import LoadedFunctions

# Where a class of tensors has PyTorch's C functions, and what the capsule around them is called. Not one of
# ``private_torch``: it is DLPack's (1.2), published by frameworks for others, and kernels take PyTorch's
# tensors without tirgemm.torch. tvm_ffi adds it to versions of PyTorch that lack it.
_EXCHANGE, _CAPSULE = "__dlpack_c_exchange_api__", b"dlpack_exchange_api"


@cache
def _library() -> ctypes.PyDLL | None:
    """The launcher's functions of Python objects, which know PyTorch's; None where it offers no exchange functions."""
    torch = sys.modules["torch"]
    native.library()  # loads libtvm_ffi, which adds the exchange functions to versions of PyTorch without them
    capsule = getattr(torch.Tensor, _EXCHANGE, None)
    if capsule is None:
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    library, anything = ctypes.PyDLL(str(native.LIBRARY)), ctypes.py_object
    library.tirgemm_set_torch.restype = library.tirgemm_set_mode_checks.restype = None
    library.tirgemm_keep.restype = library.tirgemm_forget.restype = library.tirgemm_forget_all.restype = None
    library.tirgemm_keep.argtypes = [ctypes.c_int64, *(anything,) * 6]
    library.tirgemm_forget.argtypes = [ctypes.c_void_p]
    library.tirgemm_kept_call.restype = anything
    library.tirgemm_set_torch.argtypes = [ctypes.c_void_p, *(anything,) * 6]
    several = ctypes.POINTER(anything)
    ways = (ctypes.c_int, ctypes.c_int, anything, anything, ctypes.c_void_p, ctypes.c_void_p)
    library.tirgemm_set_mode_checks.argtypes = [several, several, *ways]
    library.tirgemm_call_into.restype = library.tirgemm_call_new.restype = anything
    library.tirgemm_call_into.argtypes = [ctypes.c_void_p]
    library.tirgemm_call_new.argtypes = [ctypes.c_void_p, ctypes.c_int, *(anything,) * 4]
    classes, asked = (torch.Tensor, torch.nn.Parameter), (torch.Tensor.is_neg, torch.is_grad_enabled)
    increment = torch.autograd.graph.increment_version
    library.tirgemm_set_torch(pointer(capsule, _CAPSULE), *classes, *asked, sys.intern("requires_grad"), increment)
    _set_mode_checks(library)
    return library


def _set_mode_checks(library: ctypes.PyDLL) -> None:
    """What the launcher asks PyTorch first: of all functions the tracers, of ``call_new`` everything."""
    from tirgemm.artifact.private_torch import LEVEL, NATIVE_TRACERS, QUESTIONS, TRACERS  # it imports PyTorch

    first: ctypes.Array[Any] = (ctypes.py_object * len(QUESTIONS))()
    second: ctypes.Array[Any] = (ctypes.py_object * len(QUESTIONS))()
    for index, pair in enumerate(QUESTIONS):
        first[index], second[index] = pair
    library.tirgemm_set_mode_checks(first, second, len(QUESTIONS), len(TRACERS), *LEVEL, *NATIVE_TRACERS)


@cache
def plain_tensors() -> frozenset[type]:
    """The tensors that kernels take; subclasses have ideas of their own. PyTorch must be imported."""
    torch = sys.modules["torch"]
    return frozenset({torch.Tensor, torch.nn.Parameter})


def call_into(functions: LoadedFunctions) -> Callable[..., bool] | None:
    """A function of the kernel's tensors, the output last, that says whether the kernel took them.

    It takes ``plain_tensors`` alone, none that are lazily negated, or whose gradients are recorded, and nothing where a
    tracer, a mode or forward-mode differentiation is on. PyTorch counts the change of the output where gradients are
    recorded, and of parameters. None where PyTorch offers no exchange functions.
    """
    library = _library()
    if library is None:
        return None
    made: Callable[..., bool] = library.tirgemm_call_into(functions.handle())
    return made


def call_new(
    functions: LoadedFunctions,
    empty: Callable[[tuple[int, ...], tuple[int, ...], Any], Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: Any,
    *,
    rows: bool,
) -> Callable[[Any, Any, Any], Any] | None:
    """A function of x, weight and bias (or None) that returns ``empty(shape, strides, dtype)`` with the kernel's
    result, or None where it did not run: the tensors do not fit, or PyTorch wants more than a result.

    ``rows``: x and the result are of any rank, and their dimensions before the last are taken as one. x must be a
    torch.Tensor. None where PyTorch offers no exchange functions.
    """
    library = _library()
    if library is None:
        return None
    made: Callable[[Any, Any, Any], Any] = library.tirgemm_call_new(
        functions.handle(), rows, empty, shape, strides, dtype
    )
    return made


def kept_call() -> Callable[[Any, Any, Any, str, object], Any]:
    """A function of x, weight, bias (or None), and by identity an activation's interned name and what says which
    kernels may serve the call: what ``keep`` has for them, or None where it has nothing, or where that does not take
    them."""
    library = _library()
    if library is None:
        return lambda *_: None
    made: Callable[[Any, Any, Any, str, object], Any] = library.tirgemm_kept_call()
    return made


def keep(
    kind: int, tensors: tuple[Any, Any, Any], how: tuple[str, object], call: Callable[[Any, Any, Any], Any]
) -> None:
    """Keep ``call`` for calls with this weight and bias of ``tensors`` (x, weight, bias or None), and for those of all
    layers of the ``kind``, where x has this shape, dtype and device and is as dense. Neither is held: ``forget`` them
    before they are gone."""
    library, (x, weight, bias), (act, kernels) = _library(), tensors, how
    if library is not None:
        library.tirgemm_keep(kind, weight, bias, sys.intern(act), kernels, x, call)


def forget(address: int) -> None:
    """Forget a weight or a bias by its id."""
    library = _library()
    if library is not None:
        library.tirgemm_forget(address)


def forget_all() -> None:
    """Forget all that was kept."""
    library = _library()
    if library is not None:
        library.tirgemm_forget_all()
