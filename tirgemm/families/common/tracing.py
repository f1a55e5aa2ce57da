"""``quick_tracing``: TIRx parsing without a walk of Python's whole call stack at every step, each source parsed once.

TVM asks ``inspect`` for the file, the module and the source line of every frame, at each inlined function and each
buffer of a class, to use one of them. That is half the time that a kernel takes to trace, more in a deep call stack.
And it parses the text of a kernel and of what the kernel inlines anew each time, a quarter of what is left; the syntax
trees are only read. What TVM does with expressions is in ``evaluation``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import linecache
import sys
import threading
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from tirgemm.families.common.evaluation import keeping_evaluator

# Who walks the stack: the parser to find itself, the builder to say where a buffer was declared.
_WALKERS = ("tvm.script.parser.core.parser", "tvm.tirx.script.builder.ir", "tvm.tirx.script.parser.entry")
# Whose ``parse`` makes the syntax trees of source texts, and how many of them are kept.
_SYNTAX, _KEPT = "tvm.script.parser.core.doc", 64


class _LazyFrame:
    """What TVM reads of an ``inspect.FrameInfo``, found out when it is read."""

    __slots__ = ("frame", "lineno")

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self.lineno = frame.f_lineno

    @property
    def filename(self) -> str:
        return self.frame.f_code.co_filename

    @property
    def code_context(self) -> list[str] | None:
        line = linecache.getline(self.filename, self.lineno, self.frame.f_globals)
        return [line] if line else None


class _Inspect(ModuleType):
    """The module ``inspect`` with stacks of ``_LazyFrame``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    @staticmethod
    def getouterframes(frame: FrameType | None, context: int = 1) -> list[_LazyFrame]:
        del context
        frames = []
        while frame is not None:
            frames.append(_LazyFrame(frame))
            frame = frame.f_back
        return frames

    @staticmethod
    def stack(context: int = 1) -> list[_LazyFrame]:
        return _Inspect.getouterframes(sys._getframe(1), context)


@functools.lru_cache(maxsize=1)
def _keeping_trees() -> tuple[Any, Any]:
    """TVM's function from a source text to its syntax tree, and one that keeps the last trees."""
    plain = importlib.import_module(_SYNTAX).parse
    return plain, functools.lru_cache(maxsize=_KEPT)(plain)


_quick = _Inspect("inspect")
_lock = threading.Lock()
_users = 0


@contextlib.contextmanager
def quick_tracing() -> Iterator[None]:
    """While the block runs, in any thread, TVM's stack walks read only what they use, and no text is parsed, and no
    expression compiled, twice."""
    global _users
    modules: list[Any] = [importlib.import_module(name) for name in _WALKERS]
    syntax: Any = importlib.import_module(_SYNTAX)
    plain, keeping = _keeping_trees()
    evaluator = keeping_evaluator()
    with _lock:
        _users += 1
        syntax.parse = keeping
        evaluator.put_in()
        for module in modules:
            module.inspect = _quick
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                syntax.parse = plain
                evaluator.put_back()
                for module in modules:
                    module.inspect = inspect
