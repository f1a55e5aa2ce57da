"""Quick tracing gives the module that plain tracing gives, and leaves TVM as it was."""

from __future__ import annotations

import contextlib
import inspect
import sys

import pytest

from tirgemm.families import FAMILIES
from tirgemm.families.common.evaluation import keeping_evaluator
from tirgemm.families.common.tracing import quick_tracing
from tirgemm.families.wgmma import program as programs
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
def test_module_is_the_one_of_plain_tracing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [_module(text), _module(text)]
    monkeypatch.setattr(programs, "quick_tracing", contextlib.nullcontext)
    assert quick == [_module(text)] * 2


# Those that differ in a constant's type, or in what is a name and what a word, are no others' values.
_EXPRESSIONS = (
    *("1", "True", "1.0", "x", "len", "f(1)", "f(True)", "f(1.0)", "f(0.0)", "f(-0.0)", "f(x)", "f('x')", "f(*y)"),
    *("f(x, z=y)", "f(x, **{'z': 1})", "y[0]", "y[-1]", "y[0:1]", "(x, 1)", "[x, 1]", "x.real", "x.imag", "len(y)"),
    *("x + 1 < 2 and y", "x if True else y", "(lambda a: a + x)(1)", "(lambda a: a - x)(1)", "[a for a in y]"),
)


def test_expressions_have_the_values_that_they_have_without() -> None:
    from tvm.script.parser.core import doc, evaluator

    def f(*values: object, **named: object) -> object:
        return values, named

    def values() -> list[str]:
        trees = [doc.parse(text, mode="eval").body for text in _EXPRESSIONS]
        names = {"x": 3, "y": (7, 8), "f": f}
        return [repr(evaluator.ExprEvaluator.eval(None, dict(names), tree)) for tree in trees]

    plain = values()
    with quick_tracing():
        assert values() == values() == plain


def test_tvms_evaluator_is_back_after_the_last_user() -> None:
    from tvm.script.parser.core import evaluator

    def parts() -> tuple[object, ...]:
        return evaluator._eval_expr, evaluator._eval_assign, evaluator.ExprEvaluator._visit

    plain = parts()
    with quick_tracing():
        assert not set(parts()) & set(plain)
    assert parts() == plain


def test_no_more_expressions_are_kept_than_the_evaluator_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm.script.parser.core import doc, evaluator

    monkeypatch.setattr(sys.modules[keeping_evaluator.__module__], "_KEPT", 3)
    monkeypatch.setattr(keeping_evaluator(), "_codes", {})
    with quick_tracing():
        for number in range(10):
            tree = doc.parse(f"f({number})", mode="eval").body
            assert evaluator.ExprEvaluator.eval(None, {"f": lambda given: given}, tree) == number
    assert len(keeping_evaluator()._codes) <= 3


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
