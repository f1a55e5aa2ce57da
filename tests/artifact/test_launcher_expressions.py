"""The launcher evaluates an expression in m as tirgemm.expr does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.artifact_samples import raw_kernel, shared_object
from tirgemm import expr
from tirgemm.errors import CorruptArtifact
from tirgemm.expr import Dim, Expr, M
from tirgemm.gemm import Gemm, Range
from tirgemm.launch import KernelLaunch, Launch, Pointer, Size, tensor_args

GEMM = Gemm(Range(1, 300), 4, 4, dtype="f32", layout="nn", align=4)
# Writes the two halves of a 64-bit size into the output.
SHOW = shared_object("KERNEL(show) { memcpy(args[0].v.p, &args[1].v.i, 8); return 0; }")

numbers = st.integers(-(2**31), 2**31)
operators = st.sampled_from(sorted(expr._OPERATORS))
expressions = st.recursive(numbers | st.just(M), lambda inner: st.builds(Expr, operators, inner, inner), max_leaves=12)


def evaluate(dim: Dim, m: int) -> int:
    launch = Launch(tensor_args(GEMM), (), (KernelLaunch("show", (Pointer("d"), Size(dim, "i64"))),))
    function = raw_kernel(GEMM, launch, SHOW)
    out = np.zeros((m, 4), np.float32)
    function(np.zeros((m, 4), np.float32), np.zeros((4, 4), np.float32), out)
    return int(out.reshape(-1)[:2].view(np.int64)[0])


def value(dim: Dim, m: int) -> int | None:
    """Python's value, or None where it divides by zero or leaves 64 bits on the way."""

    def walk(node: Dim) -> int:
        if isinstance(node, int):
            return node
        actual = m if node.op == "m" else expr._OPERATORS[node.op](walk(node.left), walk(node.right))
        if not -(2**63) <= actual < 2**63:
            raise OverflowError
        return actual

    try:
        return walk(dim)
    except (ZeroDivisionError, OverflowError):
        return None


@settings(max_examples=150, deadline=None)
@given(expressions, st.integers(1, 300))
def test_the_launcher_and_python_agree(dim: Any, m: int) -> None:
    expected = value(dim, m)
    if expected is None:
        with pytest.raises(CorruptArtifact, match=r"division by|leaves 64 bits"):
            evaluate(dim, m)
    else:
        assert evaluate(dim, m) == expected


@pytest.mark.parametrize("op", sorted(expr._OPERATORS))
@pytest.mark.parametrize(("left", "right"), [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3), (-6, 3), (0, 5)])
def test_every_operator_rounds_as_python_does(op: str, left: int, right: int) -> None:
    dim = Expr(op, Expr("sub", Expr("add", M, left), M), right)
    assert evaluate(dim, 13) == expr._OPERATORS[op](left, right)


def test_an_expression_too_deep_for_the_launcher_is_refused() -> None:
    dim: Dim = M
    for _ in range(40):
        dim = Expr("add", 1, dim)
    with pytest.raises(CorruptArtifact, match="deeper than 32"):
        evaluate(dim, 5)
