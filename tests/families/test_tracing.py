"""Quick tracing gives the module that plain tracing gives, and leaves TVM as it was."""

from __future__ import annotations

import inspect
import sys

import pytest

from tirgemm.families import FAMILIES
from tirgemm.families.common.tracing import quick_tracing
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device

_H200 = named_device("sm_90a")


def _module(text: str) -> str:
    gemm, family = Gemm.parse(text), FAMILIES["wgmma"]
    return str(family.instantiate(gemm, family.default(gemm, _H200, "sustained"), _H200).mod.script())


@pytest.mark.parametrize(
    "text",
    [
        "4096x4096x4096:f16:nt",
        "1..64x576x7168:f16:nt:batch=2:alpha:beta:bias:out=f32",
        "2000x4097x4104:f16:nt:act=gelu",
    ],
)
def test_module_is_the_one_of_plain_tracing(text: str) -> None:
    plain = _module(text)
    with quick_tracing():
        assert _module(text) == plain


def test_tracing_surveys_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def survey(*_: object) -> object:
        raise AssertionError("TVM reads the whole call stack again")

    monkeypatch.setattr(inspect, "getframeinfo", survey)
    with quick_tracing():
        _module("4096x4096x4096:f16:nt")


def test_tvms_view_of_the_stack_is_back_after_the_last_user() -> None:
    def seen() -> bool:
        return sys.modules["tvm.script.parser.core.parser"].inspect is inspect

    with quick_tracing():
        with quick_tracing():
            assert not seen()
        assert not seen()
    assert seen()


def test_tvms_view_of_the_stack_is_back_after_an_error() -> None:
    with pytest.raises(KeyError), quick_tracing():
        raise KeyError
    assert sys.modules["tvm.script.parser.core.parser"].inspect is inspect


def test_frames_show_their_file_line_and_source() -> None:
    with quick_tracing():
        (mine, *_) = sys.modules["tvm.script.parser.core.parser"].inspect.stack()
    real = inspect.stack()[0]
    assert (mine.frame, mine.filename) == (real.frame, real.filename)
    assert mine.code_context is not None
    assert "inspect.stack()" in mine.code_context[0]
