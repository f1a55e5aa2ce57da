"""The class of loaded kernels, whose calls CPython passes to the launcher: it is ``Kernel`` in all that users see."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import FrameType
from typing import Any

import numpy as np
import pytest

from tests.helpers.artifact_samples import kernel
from tirgemm.artifact import Kernel
from tirgemm.artifact import callable_class as module
from tirgemm.artifact.callable_class import callable_class
from tirgemm.errors import CallTypeError

GEMM = "3x7x5:f32:nt"


@pytest.fixture
def loaded() -> Kernel:
    return kernel(GEMM)


@pytest.fixture
def operands() -> tuple[Any, Any, Any]:
    return np.ones((3, 5), np.float32), np.ones((7, 5), np.float32), np.zeros((3, 7), np.float32)


def python_calls(call: Callable[[], Any]) -> int:
    """How often ``Kernel.__call__`` is entered meanwhile."""
    entered = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        entered.append(event == "call" and frame.f_code is Kernel.__call__.__code__)

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sum(entered)


def test_it_is_the_class_that_users_know(loaded: Kernel) -> None:
    made = type(loaded)
    assert made is callable_class()
    assert issubclass(made, Kernel)
    for name in ("__name__", "__qualname__", "__module__", "__call__", "__doc__"):
        assert getattr(made, name) == getattr(Kernel, name)
    assert inspect.signature(loaded) == inspect.signature(Kernel.__call__.__get__(loaded))
    assert repr(loaded).startswith(f"<Kernel {GEMM} on cpu")
    with loaded as entered:
        assert entered is loaded


def test_calls_of_every_form_go_through(loaded: Kernel, operands: tuple[Any, Any, Any]) -> None:
    a, b, out = operands
    assert np.all(loaded(a, b) == 5)
    assert loaded(a, b, out=out) is out
    assert loaded(b=b, a=a, out=out.copy()).sum() == 105
    assert loaded(a, b, None, None, alpha=None, beta=None, out=out) is out
    assert loaded(*operands[:2], **{"out": out}) is out
    assert loaded.__call__(a, b, out=out) is out
    assert np.all(out == 5)


def test_wrong_calls_are_refused_as_by_any_function(loaded: Kernel, operands: tuple[Any, Any, Any]) -> None:
    call: Any = loaded
    with pytest.raises(TypeError, match=r"__call__\(\) missing 2 required positional arguments: 'a' and 'b'"):
        call()
    with pytest.raises(TypeError, match=r"__call__\(\) got an unexpected keyword argument 'into'"):
        call(*operands[:2], into=operands[2])
    with pytest.raises(TypeError, match=r"takes from 3 to 5 positional arguments but 6 were given"):
        call(*operands, *operands[:2])
    with pytest.raises(CallTypeError, match="c is given"):
        call(*operands)
    with pytest.raises(CallTypeError, match="out is a int"):
        call(*operands[:2], out=3)


def test_into_is_asked_first_and_the_method_where_it_does_not_help(
    loaded: Kernel, operands: tuple[Any, Any, Any]
) -> None:
    a, b, out = operands
    asked: list[Any] = []

    def takes(*args: Any) -> bool:
        asked.append(args)
        return True

    loaded._into = takes
    assert python_calls(lambda: loaded(a, b, out=out)) == 0
    assert loaded(a, b, out=out) is out
    assert [tuple(map(id, args)) for args in asked] == [(id(a), id(b), id(out))] * 2
    assert not out.any(), "it said that it had"
    loaded._into = lambda *_: False
    assert python_calls(lambda: loaded(a, b, out=out)) == 1
    assert out.all()
    loaded._into = lambda *_: 1 / 0 > 1
    with pytest.raises(ZeroDivisionError):
        loaded(a, b, out=out)
    loaded._into = None
    assert loaded(a, b, out=out) is out


def test_into_may_be_replaced_while_it_runs(loaded: Kernel, operands: tuple[Any, Any, Any]) -> None:
    def forgetful(*_: Any) -> bool:
        loaded._into = None
        gc.collect()
        return True

    loaded._into = forgetful
    del forgetful
    assert loaded(*operands[:2], out=operands[2]) is operands[2]
    assert loaded._into is None


def test_copies_are_called_too(loaded: Kernel, operands: tuple[Any, Any, Any]) -> None:
    a, b, out = operands
    copied = copy.copy(loaded)
    assert type(copied) is type(loaded)
    assert copied(a, b, out=out) is out
    assert np.all(out == 5)
    loaded._into = lambda *_: True
    assert copied._into is None
    assert python_calls(lambda: copy.copy(loaded)(a, b, out=out)) == 0


def test_a_deep_copy_of_what_holds_a_kernel_has_the_kernel(loaded: Kernel, operands: tuple[Any, Any, Any]) -> None:
    a, b, out = operands
    held = copy.deepcopy({"kernel": loaded})["kernel"]
    assert held is loaded
    assert held(a, b, out=out) is out


def test_a_pickle_of_a_kernel_is_refused_with_what_to_do(loaded: Kernel) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=r"^a loaded kernel cannot be pickled: save it by kernel\.save\(path\)"):
            pickle.dumps({"kernel": loaded}, protocol)


def test_a_dropped_kernel_is_freed_with_what_it_holds(operands: tuple[Any, Any, Any]) -> None:
    class Into:
        kernel: Kernel | None = None

        def __call__(self, *_: Any) -> bool:
            return True

    before = [sys.getrefcount(each) for each in (*operands, None, True)]
    for cyclic in (False, True):
        loaded, into = kernel(GEMM), Into()
        loaded._into = into
        if cyclic:
            into.kernel = loaded
        for _ in range(100):
            loaded(*operands[:2], out=operands[2])
        alive = weakref.ref(loaded), weakref.ref(into)
        del loaded, into
        gc.collect()
        assert [each() for each in alive] == [None, None]
    after = [sys.getrefcount(each) for each in (*operands, None, True)]
    assert all(abs(now - then) < 50 for now, then in zip(after, before, strict=True))


def test_a_debug_build_of_cpython_has_the_class_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "gettotalrefcount", lambda: 0, raising=False)
    assert module._made.__wrapped__() is Kernel


def test_a_build_without_pythons_lock_has_the_class_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_config_var", {"Py_GIL_DISABLED": 1}.get)
    assert module._made.__wrapped__() is Kernel


def test_threads_that_load_at_once_get_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module._made.__wrapped__

    def slowly() -> type[Kernel]:
        time.sleep(0.01)
        return made()

    monkeypatch.setattr(module, "_made", cache(slowly))
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: callable_class(), range(8)))) == 1
