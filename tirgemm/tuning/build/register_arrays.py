"""CUDA source whose register arrays are plain variables, as the compiler ends up with anyway.

TVM writes a thread's sums as an array, at constant indices in thousands of unrolled statements. NVRTC takes them apart
late, after passes that ask of every such statement which others touch the same memory, and that is most of a large
kernel's compile. Variables leave nothing to ask. A loop over the lanes of a vector, which TVM writes where a call takes
no vectors, is written out first, as NVRTC unrolls it. Arithmetic and accesses stay what they are; moves, and the order
of it all, may differ.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial

# As TVM writes them: the declaration, an element, and the vectors that are stored to and loaded from an array.
_ARRAY = re.compile(r"^( *)alignas\(64\) (float|half) (\w+)\[(\d+)\];$", re.MULTILINE)
_ELEMENT = re.compile(r"\b(\w+)\[(?:\(int64_t\))?(\d+)\]")
_VECTOR = r"\*\((float2|float4|half2|half4)\*\)\((\w+) \+ (?:\(int64_t\))?(\d+)\)"
_STORED = re.compile(rf"^( *){_VECTOR} = (.*);$", re.MULTILINE)
_LOADED = re.compile(_VECTOR)
_LANES = {"float2": 2, "float4": 4, "half2": 2, "half4": 4}
# A loop of one statement over at most eight lanes.
_LANE_LOOP = re.compile(
    r"^(?: *#pragma unroll\n)?( *)for \(int (\w+) = 0; \2 < ([2-8]); \+\+\2\) \{\n((?:(?!\bfor \().)*;)\n\1\}$",
    re.MULTILINE,
)
# Ends as no name that TVM makes does; so do elements.
_WHOLE = "whole_"
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")


def with_scalars(source: str) -> str:
    """``source``, which TVM wrote, with a variable for every element of the arrays of floats and halves that are only
    ever accessed at constant indices; as it was where it has inline assembly, which TVM's fragments are arrays for."""
    if "asm volatile" in source:
        return source
    written_out = _lanes_written_out(source)
    split = _only_indexed(written_out)
    return _written(written_out, split) if split else source


def _lanes_written_out(source: str) -> str:
    """``source`` with the loops over the lanes of an array of registers as a statement a lane."""
    arrays = {name for _, _, name, _ in _ARRAY.findall(source)}

    def written(loop: re.Match[str]) -> str:
        indent, lane, count, statement = loop.groups()
        at_lane = re.compile(rf"\b(\w+)\[\({lane}(?: \+ (\d+))?\)\]|\b(\w+)\[{lane}\]")
        indexed = at_lane.findall(statement)
        if not any((name or bare) in arrays for name, _, bare in indexed):
            return loop[0]

        def element(value: int, at: re.Match[str]) -> str:
            return f"{at[1] or at[3]}[{value + int(at[2] or 0)}]"

        return "\n".join(
            re.sub(rf"\b{lane}\b", str(value), at_lane.sub(partial(element, value), statement)).replace(
                f"{indent}  ", indent, 1
            )
            for value in range(int(count))
        )

    return _LANE_LOOP.sub(written, source)


def _only_indexed(source: str) -> dict[str, tuple[str, int]]:
    """Type and size of the arrays of ``source`` that are only ever accessed at constant indices, by name."""
    declared = _ARRAY.findall(source)
    names = Counter(name for _, _, name, _ in declared)
    arrays = {name: (dtype, int(size)) for _, dtype, name, size in declared if names[name] == 1}
    words = Counter(word for word in _WORD.findall(source) if word in arrays)
    # A declaration and what is understood: a word that is left over is some other use.
    known = Counter(arrays.keys())
    for name, index in _ELEMENT.findall(source):
        known[name] += name in arrays and int(index) < arrays[name][1]
    for vector, name, first in _LOADED.findall(source):
        known[name] += name in arrays and _fits(vector, int(first), *arrays[name])
    # The size in a declaration reads as an element that is not there.
    return {name: array for name, array in arrays.items() if known[name] == words[name]}


def _fits(vector: str, first: int, dtype: str, size: int) -> bool:
    return vector.startswith(dtype) and first + _LANES[vector] <= size


def _written(source: str, split: dict[str, tuple[str, int]]) -> str:
    def declare(declaration: re.Match[str]) -> str:
        indent, dtype, name, size = declaration.groups()
        if name not in split:
            return declaration[0]
        return f"{indent}{dtype} {', '.join(_elements(name, 0, int(size)))};"

    def store(assignment: re.Match[str]) -> str:
        indent, vector, name, first, value = assignment.groups()
        if name not in split:
            return assignment[0]
        parts = zip(_elements(name, int(first), _LANES[vector]), "xyzw", strict=False)
        taken = " ".join(f"{element} = {_WHOLE}.{part};" for element, part in parts)
        return f"{indent}{{ {vector} {_WHOLE} = {value}; {taken} }}"

    def load(access: re.Match[str]) -> str:
        vector, name, first = access.groups()
        if name not in split:
            return access[0]
        return f"make_{vector}({', '.join(_elements(name, int(first), _LANES[vector]))})"

    source = _STORED.sub(store, _ARRAY.sub(declare, source))
    source = _LOADED.sub(load, source)
    return _ELEMENT.sub(lambda element: f"{element[1]}_{element[2]}_" if element[1] in split else element[0], source)


def _elements(name: str, first: int, count: int) -> list[str]:
    return [f"{name}_{index}_" for index in range(first, first + count)]
