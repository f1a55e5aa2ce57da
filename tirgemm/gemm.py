"""The dataclass ``Gemm``: the sizes, dtypes, layouts, leading dimensions and epilogue of one matrix multiply.

It describes ``D = act(alpha * A B + beta * C + bias[n])``; m may be a ``Range``, all sizes from a least to a greatest.
``str(gemm)`` is its text form, and ``Gemm.parse`` reads it. ``4096x4096x4096:f16:nt`` has the default value in every
optional field; a text with many of them set is
``1..8192x4096x4104:bf16:tn:acc=f32:out=f32:batch=8:lda=4200:align=2:alpha:beta:bias:act=gelu:deterministic``.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from numbers import Integral
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from tirgemm import expr
from tirgemm.errors import InvalidGemm, one_of
from tirgemm.expr import Dim

DTYPE_BYTES: dict[str, int] = {"f16": 2, "bf16": 2, "f32": 4}
DTYPE_NAMES: dict[str, str] = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
LAYOUTS = ("nn", "nt", "tn", "tt")
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
Regime: TypeAlias = Literal["sustained", "isolated"]
"""Conditions of a measured time: back to back behind others under load, or alone with nothing in the L2."""
REGIMES: tuple[Regime, ...] = get_args(Regime)
MAX_SIZE = 2**31 - 1
MAX_OPERAND_BYTES = 2**44
MAX_ALIGN = 1024
USUAL_ALIGN = 16
"""The alignment in bytes that kernels are made for where nobody says otherwise, and that allocators give."""


def regime_named(text: str) -> Regime:
    """The regime of that name. Raises InvalidRequest."""
    return one_of("regime", text, REGIMES)


Operand = Literal["a", "b", "c", "d"]
OPERANDS: tuple[Operand, ...] = ("a", "b", "c", "d")
# m as a number or as a Dim.
_Size = TypeVar("_Size", int, Dim)


def operand_named(name: str) -> Operand:
    """The operand of that name. Raises InvalidRequest."""
    return one_of("operand", name, OPERANDS)


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Every m from ``low`` to ``high``, both included, served by one kernel."""

    low: int
    high: int

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, _whole(getattr(self, name)))

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


def _whole(value: Any) -> Any:
    """``value``, an integer of another type (NumPy's, say) as an int."""
    return int(value) if type(value) not in (int, bool) and isinstance(value, Integral) else value


@dataclass(frozen=True, slots=True)
class Gemm:
    """One matrix-multiply problem.

    Sizes are in elements, leading dimensions (``ld*``) and batch strides (``stride_*``) too; 0 means dense, and a value
    that equals the dense one is stored as 0, so that equal problems are equal values; but where m is a range, batch
    strides stay as given. ``align`` is the alignment in bytes of every base address. ``alpha``, ``beta`` and ``bias``
    say *whether* they occur. C, bias and D have the output dtype; alpha and beta are passed as fp32. ``invariant``: the
    bits of a row of D follow from its inputs alone, through every kernel of one ``row_class`` on one architecture.

    Raises InvalidGemm, with the field, the value and the limit, for anything that cannot be.
    """

    m: int | Range
    n: int
    k: int
    dtype: str = "f16"
    layout: str = "nt"
    acc: str = "f32"
    out: str = ""
    batch: int = 1
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    ldd: int = 0
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0
    stride_d: int = 0
    align: int = USUAL_ALIGN
    alpha: bool = False
    beta: bool = False
    bias: bool = False
    act: str = "none"
    deterministic: bool = False
    invariant: bool = False
    _text: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "out", self.out or self.dtype)
        self._check_words()
        if isinstance(self.m, Range) and self.m.low == self.m.high:
            object.__setattr__(self, "m", self.m.low)
        self._check_sizes()
        for operand in OPERANDS:
            self._normalise_strides(operand)
        object.__setattr__(self, "_text", self._render())

    # -- sizes ---------------------------------------------------------------------------------

    @property
    def m_max(self) -> int:
        return self.m.high if isinstance(self.m, Range) else self.m

    @property
    def m_min(self) -> int:
        return self.m.low if isinstance(self.m, Range) else self.m

    @property
    def m_dim(self) -> Dim:
        """m as a Dim: its number, or the symbol where it is a range."""
        return expr.M if isinstance(self.m, Range) else self.m

    @property
    def trans_a(self) -> bool:
        return self.layout[0] == "t"

    @property
    def trans_b(self) -> bool:
        return self.layout[1] == "t"

    def matrix(self, operand: Operand) -> tuple[Dim, Dim]:
        """Rows and columns of one operand as it lies in memory."""
        m: Dim = self.m_dim
        return self._matrix(operand, m)

    def _matrix(self, operand: Operand, m: _Size) -> tuple[_Size, _Size]:
        if operand == "a":
            return (self.k, m) if self.trans_a else (m, self.k)
        if operand == "b":
            return (self.n, self.k) if self.trans_b else (self.k, self.n)
        return (m, self.n)

    def leading(self, operand: Operand) -> Dim:
        """Elements from one row to the next; depends on m only for a dense transposed A with m a range."""
        value: int = getattr(self, f"ld{operand}")
        return value or self.matrix(operand)[1]

    def batch_stride(self, operand: Operand) -> Dim:
        """Elements from one matrix of the batch to the next."""
        value: int = getattr(self, f"stride_{operand}")
        return value or expr.make("mul", self.matrix(operand)[0], self.leading(operand))

    def shape(self, operand: Operand) -> tuple[Dim, ...]:
        """The tensor's shape: two dimensions, or three with the batch first where batch > 1."""
        matrix = self.matrix(operand)
        return (self.batch, *matrix) if self.batch > 1 else matrix

    def strides(self, operand: Operand) -> tuple[Dim, ...]:
        """The tensor's strides in elements, matching ``shape``."""
        inner: tuple[Dim, Dim] = (self.leading(operand), 1)
        return (self.batch_stride(operand), *inner) if self.batch > 1 else inner

    def operand_dtype(self, operand: Operand) -> str:
        return self.dtype if operand in ("a", "b") else self.out

    def span(self, operand: Operand, m: int | None = None) -> int:
        """Elements from the first to one past the last of an operand, at ``m`` (the largest by default)."""
        at = self.m_max if m is None or not isinstance(self.m, Range) else m
        rows, cols = self._matrix(operand, at)
        leading: int = getattr(self, f"ld{operand}") or cols
        stride: int = getattr(self, f"stride_{operand}") or rows * leading
        return (self.batch - 1) * stride + (rows - 1) * leading + cols

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input tensors in call order: a, b, then c and bias where they occur."""
        return ("a", "b", *(("c",) if self.beta else ()), *(("bias",) if self.bias else ()))

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of the scalar arguments in call order."""
        return (*(("alpha",) if self.alpha else ()), *(("beta",) if self.beta else ()))

    @property
    def flops(self) -> int:
        """2 m n k per matrix of the batch, at the largest m."""
        return 2 * self.m_max * self.n * self.k * self.batch

    @property
    def nbytes(self) -> int:
        """Bytes of every operand that occurs, as it lies in memory, at the largest m."""
        used: list[Operand] = ["a", "b", "d", *(("c",) if self.beta else ())]
        total = sum(self.span(op) * DTYPE_BYTES[self.operand_dtype(op)] for op in used)
        return total + (self.n * DTYPE_BYTES[self.out] if self.bias else 0)

    @property
    def row_class(self) -> Gemm:
        """What the bits of a row may depend on: the problem with one row and dense operands, without batch."""
        kept = {name: getattr(self, name) for name in ("dtype", "layout", "acc", "out", "alpha", "beta", "bias", "act")}
        return Gemm(1, self.n, self.k, **kept, invariant=self.invariant)

    # -- text ----------------------------------------------------------------------------------

    def __str__(self) -> str:
        return self._text

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that name this problem."""
        return hashlib.sha256(self._text.encode()).hexdigest()[:16]

    @classmethod
    def parse(cls, text: str) -> Gemm:
        """The problem that ``text`` names; the inverse of ``str``. Raises InvalidGemm."""
        if not isinstance(text, str) or len(text) > 512:
            raise InvalidGemm(
                f"a gemm is a text of at most 512 characters such as 4096x4096x4096:f16:nt, not {text!r:.80}"
            )
        return cls._parsed(text)

    @classmethod
    @lru_cache(maxsize=4096)  # records name the same problems again and again
    def _parsed(cls, text: str) -> Gemm:
        head, *rest = text.strip().split(":")
        match = re.fullmatch(r"(-?\d+)(?:\.\.(-?\d+))?x(-?\d+)x(-?\d+)", head, re.ASCII)
        if not match:
            file = "; the problem of a kernel file is what `tirgemm show` names" if text.endswith(".tirgemm") else ""
            raise InvalidGemm(
                f"gemm {text!r}: {head!r} is not MxNxK with integers, or LOW..HIGHxNxK where m is a range, as in "
                f"4096x4096x4096:f16:nt{file}"
            )
        low, high, n, k = match.groups()
        values: dict[str, Any] = {"m": Range(_int(low), _int(high)) if high else _int(low), "n": _int(n), "k": _int(k)}
        if rest and "=" not in rest[0] and rest[0] not in _FLAGS:
            values["dtype"] = rest.pop(0)
        if rest and "=" not in rest[0] and rest[0] not in _FLAGS:
            values["layout"] = rest.pop(0)
        for part in rest:
            name, equals, value = part.partition("=")
            if name in values:
                raise InvalidGemm(f"gemm {text!r}: {name!r} occurs twice")
            if not equals and name in _FLAGS:
                values[name] = True
            elif equals and name in _INTEGERS:
                values[name] = _int(value, name)
            elif equals and name in _WORDS:
                if not value:
                    raise InvalidGemm(f"gemm {text!r}: field {name} has no value; without the field it has its default")
                values[name] = value
            else:
                fields = f"write act={part}" if part in ACTIVATIONS else f"fields are {', '.join(_FIELDS_TEXT)}"
                raise InvalidGemm(f"gemm {text!r}: {part!r} is not a field; {fields}")
        return cls(**values)

    def _render(self) -> str:
        parts = [f"{self.m}x{self.n}x{self.k}", self.dtype, self.layout]
        for name, default in _DEFAULTS:
            value = getattr(self, name)
            if value != (self.dtype if name == "out" else default):
                parts.append(name if name in _FLAGS else f"{name}={value}")
        return ":".join(parts)

    # -- JSON ----------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Every field with its value; m is a number or ``"LOW..HIGH"``."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return out | {"m": str(self.m) if isinstance(self.m, Range) else self.m}

    @classmethod
    def from_json(cls, value: object) -> Gemm:
        """A problem from its text form or from an object of its fields. Raises InvalidGemm."""
        if isinstance(value, str):
            return cls.parse(value)
        if not isinstance(value, dict):
            raise InvalidGemm(f"a gemm is a text or an object of fields, not {type(value).__name__}")
        known = {f.name for f in fields(cls) if f.init}
        unknown = sorted(set(map(str, value)) - known)
        if unknown:
            raise InvalidGemm(f"unknown gemm field {unknown[0]!r}; fields are {', '.join(sorted(known))}")
        missing = [name for name in ("m", "n", "k") if name not in value]
        if missing:
            raise InvalidGemm(f"gemm field {missing[0]!r} is missing")
        values = dict(value)
        if isinstance(values["m"], str):
            match = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", values["m"], re.ASCII)
            if not match:
                raise InvalidGemm(f"gemm field m: {values['m']!r} is neither an integer nor LOW..HIGH")
            values["m"] = Range(_int(match[1]), _int(match[2]))
        elif type(values["m"]) is not int and not isinstance(values["m"], Range):
            given = f"gemm field m is {values['m']!r:.80}"
            raise InvalidGemm(f"{given}; it must be an integer, or a text LOW..HIGH such as '1..64'")
        return cls(**values)

    def with_(self, **changes: Any) -> Gemm:
        """A copy with some fields changed. Strides that were dense stay dense."""
        if "dtype" in changes and "out" not in changes and self.out == self.dtype:
            changes["out"] = ""
        return replace(self, **changes)

    # -- checks --------------------------------------------------------------------------------

    def _check_types(self) -> None:
        for name in ("m", *_SIZES):
            object.__setattr__(self, name, _whole(getattr(self, name)))
        for name in _SIZES:
            if type(getattr(self, name)) is not int:
                raise InvalidGemm(f"gemm field {name} is {getattr(self, name)!r}; it must be an integer")
        if type(self.m) is not int and not (
            isinstance(self.m, Range) and type(self.m.low) is int and type(self.m.high) is int
        ):
            raise InvalidGemm(f"gemm field m is {self.m!r}; it must be an integer or a Range of two")
        for name in _FLAGS:
            if type(getattr(self, name)) is not bool:
                raise InvalidGemm(f"gemm field {name} is {getattr(self, name)!r}; it must be true or false")
        for name in _TEXTS:
            if type(getattr(self, name)) is not str:
                raise InvalidGemm(f"gemm field {name} is {getattr(self, name)!r}; it must be a text")

    def _check_words(self) -> None:
        for name, allowed in _ALLOWED:
            if getattr(self, name) not in allowed:
                raise InvalidGemm(
                    f"gemm field {name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}"
                )
        if self.acc == "f16" and self.dtype != "f16":
            raise InvalidGemm(f"gemm field acc is f16 with dtype {self.dtype}; fp16 accumulation takes f16 inputs only")

    def _check_sizes(self) -> None:
        for name, value in (("m", self.m_min), ("m", self.m_max), ("n", self.n), ("k", self.k), ("batch", self.batch)):
            if not 1 <= value <= MAX_SIZE:
                raise InvalidGemm(f"gemm field {name} is {value}; it must be from 1 to {MAX_SIZE}")
        if self.m_min > self.m_max:
            raise InvalidGemm(f"gemm field m is {self.m}; the low end of a range must not exceed the high end")
        smallest = max(DTYPE_BYTES[self.dtype], DTYPE_BYTES[self.out])
        if self.align & (self.align - 1) or not smallest <= self.align <= MAX_ALIGN:
            raise InvalidGemm(
                f"gemm field align is {self.align}; it must be a power of two from {smallest} (one element) to "
                f"{MAX_ALIGN}"
            )
        if not self.beta and (self.ldc or self.stride_c):
            raise InvalidGemm("gemm fields ldc and stride_c describe C, which occurs only where beta is true")

    def _normalise_strides(self, operand: Operand) -> None:
        """Refuse what overlaps or is too small; store the dense value as 0."""
        rows, cols = self._matrix(operand, self.m_max)
        ld_name, stride_name = f"ld{operand}", f"stride_{operand}"
        ld, stride = getattr(self, ld_name), getattr(self, stride_name)
        if ld and not cols <= ld <= MAX_SIZE:
            raise InvalidGemm(f"gemm field {ld_name} is {ld}; rows of {cols} elements need from {cols} to {MAX_SIZE}")
        ranged = isinstance(self.m, Range) and operand == "a" and self.trans_a
        if ld == cols and not ranged:
            object.__setattr__(self, ld_name, ld := 0)
        least = (rows - 1) * (ld or cols) + cols
        if stride and self.batch == 1:
            raise InvalidGemm(f"gemm field {stride_name} is {stride}; a batch stride needs batch > 1, not {self.batch}")
        if stride and not least <= stride <= 2**62:
            raise InvalidGemm(
                f"gemm field {stride_name} is {stride}; matrices of {least} elements overlap below {least}"
            )
        if stride == rows * (ld or cols) and not isinstance(self.m, Range):
            object.__setattr__(self, stride_name, 0)
        size = self.span(operand) * DTYPE_BYTES[self.operand_dtype(operand)]
        if size > MAX_OPERAND_BYTES:
            raise InvalidGemm(f"gemm operand {operand} takes {size} bytes; the limit is {MAX_OPERAND_BYTES}")


_WORDS = ("acc", "out", "act")
_INTEGERS = ("batch", "lda", "ldb", "ldc", "ldd", "stride_a", "stride_b", "stride_c", "stride_d", "align")
_FLAGS = ("alpha", "beta", "bias", "deterministic", "invariant")
_FIELDS_TEXT = (*(f"{name}=" for name in (*_WORDS, *_INTEGERS)), *_FLAGS)
_SIZES, _TEXTS = ("n", "k", *_INTEGERS), ("dtype", "layout", *_WORDS)
_ALLOWED = (
    ("dtype", tuple(DTYPE_BYTES)),
    ("acc", ("f32", "f16")),
    ("out", tuple(DTYPE_BYTES)),
    ("layout", LAYOUTS),
    ("act", ACTIVATIONS),
)
# In the order of the text form.
_DEFAULTS = [(name, Gemm.__dataclass_fields__[name].default) for name in (*_WORDS, *_INTEGERS, *_FLAGS)]


def _int(text: str | None, name: str = "size") -> int:
    if text is None or not re.fullmatch(r"-?\d{1,20}", text, re.ASCII):
        raise InvalidGemm(f"gemm field {name}: {text!r} is not an integer of at most 20 digits 0-9")
    return int(text)
