"""Evaluation of TIRx expressions that compiles no expression twice.

TVM evaluates an expression by parts, from the leaves up: each part whose operands have become names is turned into a
Python syntax tree, compiled and run. A name or a constant needs none of that, and what a kernel inlines is the same
expression again, in this trace and in the next. It is also told the place in the source of each leaf, which makes
nothing that would keep it. Together this was more than a third of the time that a ``wgmma`` kernel takes to trace.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from functools import cache, lru_cache
from types import CodeType
from typing import Any

_EVALUATOR, _SYNTAX = "tvm.script.parser.core.evaluator", "tvm.script.parser.core.doc"
# How many compiled expressions are kept: the kernels of all families have fewer.
_KEPT = 8192
_PLACES = ("lineno", "col_offset", "end_lineno", "end_col_offset")


class KeepingEvaluator:
    """What takes the place of TVM's functions, and puts them back."""

    def __init__(self) -> None:
        self._evaluator: Any = importlib.import_module(_EVALUATOR)
        self._doc: Any = importlib.import_module(_SYNTAX).doc
        self._plain = (self._evaluator._eval_expr, self._evaluator._eval_assign, self._evaluator.ExprEvaluator._visit)
        self._visit = self._visiting(self._plain[2])
        # Parts of expressions whose operands were evaluated; others, like lambdas, are compiled anew.
        doc = self._doc
        leaves, containers = {doc.Name, doc.Constant, doc.Load}, {doc.Tuple, doc.List, doc.Starred}
        self._parts = frozenset(leaves | containers | {doc.Call, doc.keyword, doc.Attribute, doc.Subscript})
        self._codes: dict[tuple[Any, ...], CodeType] = {}

    def put_in(self) -> None:
        """TVM's parser calls these until ``put_back``."""
        self._set(self._evaluate, self._assign, self._visit)

    def put_back(self) -> None:
        self._set(*self._plain)

    def _set(self, evaluate: Any, assign: Any, visit: Any) -> None:
        self._evaluator._eval_expr = evaluate
        self._evaluator._eval_assign = assign
        self._evaluator.ExprEvaluator._visit = visit

    def _evaluate(self, node: Any, names: dict[str, Any] | None) -> Any:
        """The value of ``node``, which has ``names`` as its globals: an inlined function looks for the parser there."""
        kind = type(node)
        if kind is self._doc.Constant:
            return node.value
        if names is None:
            return self._plain[0](node, names)
        if kind is self._doc.Name and node.id in names:
            return names[node.id]
        shape = self._shape(node)
        if shape is None:
            return self._plain[0](node, names)
        shape = (getattr(node, "lineno", None), *shape)
        code = self._codes.get(shape)
        if code is None:
            if len(self._codes) >= _KEPT:
                self._codes.clear()
            code = self._codes[shape] = self._compiled(node)
        return eval(code, names)

    def _compiled(self, node: Any) -> CodeType:
        tree = ast.Expression(body=importlib.import_module(_SYNTAX).from_doc(node))
        return compile(ast.fix_missing_locations(tree), filename="<ast>", mode="eval")

    def _shape(self, node: Any) -> tuple[Any, ...] | None:
        """What tells ``node`` from every other, but for places in its source; None if it is no plain part."""
        kind: Any = type(node)
        if kind not in self._parts:
            return None
        shape: list[Any] = [kind]
        for field in _fields(kind):
            value = getattr(node, field, None)
            if isinstance(value, list | tuple):
                shapes = [self._shape(part) for part in value]
                if None in shapes:
                    return None
                shape.append(tuple(shapes))
            elif isinstance(value, self._doc.AST):
                part = self._shape(value)
                if part is None:
                    return None
                shape.append(part)
            else:
                # 1, 1.0 and True are equal, as are 0.0 and -0.0.
                shape.append(value if type(value) is str else repr(value))
        return tuple(shape)

    def _assign(self, target: Any, source: Any) -> dict[str, Any]:
        if type(target) is self._doc.Name:
            return {target.id: source}
        values: dict[str, Any] = self._plain[1](target, source)
        return values

    def _visiting(self, plain: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """``plain``, the method of TVM's evaluator, without the place in the source for what stays as it is."""
        doc = self._doc
        same = (doc.Constant, doc.expr_context, doc.operator, doc.boolop, doc.unaryop, doc.cmpop)
        stays = cache(lambda kind: issubclass(kind, same))
        name = doc.Name

        def visit(evaluator: Any, node: Any) -> Any:
            kind: Any = type(node)
            if stays(kind) or (kind is name and node.id in evaluator.value_table):
                return node
            return plain(evaluator, node)

        return visit


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(field for field in kind._FIELDS if field not in _PLACES)


@lru_cache(maxsize=1)
def keeping_evaluator() -> KeepingEvaluator:
    """The one of this process; TVM's own functions are in their places when it is made first."""
    return KeepingEvaluator()
