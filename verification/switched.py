"""One CUDA source with a run-time switch between mutants.

An emulator compiles it once for all mutants.
"""

from __future__ import annotations

from collections.abc import Sequence

from verification.alterations import altered

NUMBER = "tirgemm_mutant"
_KERNEL = 'extern "C" __global__'
_DECLARED = f'extern "C" __attribute__((visibility("default"))) int {NUMBER};\nint {NUMBER} = 0;\n'


def switched(source: str, alterations: Sequence[str]) -> str:
    """``source``, whose global ``tirgemm_mutant`` chooses: 0 as it is, else the alteration of that number, from 1.

    For alterations by ``drop`` and ``weaken`` alone, which change whole statements and add helpers before the kernels.
    """
    lines = source.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(_KERNEL))
    helpers: dict[str, None] = {}
    changed: dict[int, list[tuple[int, str]]] = {}
    for number, alteration in enumerate(alterations, 1):
        text = altered(source, alteration).splitlines()
        more = len(text) - len(lines)
        helpers["\n".join(text[first : first + more])] = None
        for at, (before, after) in enumerate(zip(lines, text[:first] + text[first + more :], strict=True)):
            if before != after:
                changed.setdefault(at, []).append((number, after))
    for at, choices in changed.items():
        chain = "".join(f"if ({NUMBER} == {number}) {{ {after.strip()} }} else " for number, after in choices)
        lines[at] = f"{chain}{{ {lines[at].strip()} }}"
    lines[first:first] = [_DECLARED, *helpers]
    return "\n".join(lines) + "\n"
