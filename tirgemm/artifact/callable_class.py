"""``Kernel`` as a class that CPython calls as it calls functions, which costs less than through ``__call__``."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
import threading
from functools import cache

from tirgemm.artifact import native
from tirgemm.artifact.call import Kernel

_lock = threading.Lock()


def callable_class() -> type[Kernel]:
    """A subclass of ``Kernel`` of the same name, which the launcher makes: it asks ``_into`` itself, and calls
    ``__call__`` where that does not help. One for the process. Raises MissingExtra without the launcher."""
    with _lock:
        return _made()


@cache
def _made() -> type[Kernel]:
    if hasattr(sys, "gettotalrefcount"):
        return Kernel  # a debug build of CPython wants a C function beside, which would hide the signature of __call__
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return Kernel  # another thread may replace ``_into`` as it is read
    native.library()
    library, anything = ctypes.PyDLL(str(native.LIBRARY)), ctypes.py_object
    make = library.tirgemm_callable_class
    make.restype, make.argtypes = anything, [ctypes.c_char_p, anything, ctypes.c_ssize_t, anything, anything]
    name = f"{Kernel.__module__}.{Kernel.__qualname__}".encode()
    made: type[Kernel] = make(name, Kernel, Kernel.__basicsize__, sys.intern("out"), sys.intern("__call__"))
    made.__doc__ = Kernel.__doc__
    return made
