"""Compilers as faulty as they may be, or with as much to say, called in the process of a service that compiles for its
pages."""

from __future__ import annotations

import itertools
import os
import signal
from unittest import mock

from tirgemm.errors import BuildFailed
from tirgemm.service.views.artifact_file import OpenedArtifact
from tirgemm.service.views.kernels import code_lines
from tirgemm.service.views.kernels.code_lines import CodeLine, CodeText, linked_text

_REFUSALS = itertools.count(1)


def other_code(opened: OpenedArtifact, kind: str) -> CodeText:
    """As where another version of the compiler is installed than the kernel was built by."""
    from tirgemm.tuning.driver import nvrtc

    real = nvrtc.compile_again

    def other(source: str, flags: tuple[str, ...], name: str) -> bytes:
        return real(f"{source}\n__global__ void f() {{}}", flags, name)

    with mock.patch.object(nvrtc, "compile_again", other):
        return linked_text(opened, kind)


def refused(opened: OpenedArtifact, kind: str) -> CodeText:
    """As a compiler that refuses, and numbers its refusals in this process."""
    with mock.patch.object(code_lines, "text_of", side_effect=BuildFailed(f"refusal {next(_REFUSALS)}")):
        return linked_text(opened, kind)


def crash(opened: OpenedArtifact, kind: str) -> CodeText:
    """As a compiler that crashes on PTX; of the others the process that made them."""
    del opened
    if kind == "ptx":
        os.kill(os.getpid(), signal.SIGSEGV)
    return CodeText(kind, (CodeLine(str(os.getpid())),))


def endless(opened: OpenedArtifact, kind: str) -> CodeText:
    """As a compiler of far more lines than a page can have, each linked and of characters that take the most bytes; of
    TVMScript a few."""
    del opened
    lines = tuple(CodeLine(f"\t<&'\"\\{kind} {number}>" * 3, 1 + number % 9999) for number in range(20_000))
    return CodeText(kind, lines[:9] if kind == "script" else lines)
