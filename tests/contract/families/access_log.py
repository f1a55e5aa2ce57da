"""Generated CUDA source run on the CPU with every access to shared and global memory written down, lane by lane.

Knows nothing of the IR: addresses are those that the compiled source computes. For kernels that index memory in C++,
without helpers around instructions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.contract.families.emulation import emulate
from tirgemm.launch import Launch, Pointer
from verification.emulator.operands import KernelCall

_SHARED = "buf_dyn_shmem_ptr"
_RECORD = np.dtype(
    [("site", "<i4"), ("block", "<i4"), ("thread", "<i4"), ("pad", "<i4"), ("offset", "<i8")], align=True
)
_PRELUDE = """
#include <cstdio>
struct LoggedAccess { int site, block, thread, pad; long long offset; };
static FILE* logged_file = fopen("%s", "wb");
template <typename T> inline T& logged(T* at, int site, const void* base) {
  const int block = (int)blockIdx.x + 65536 * (int)blockIdx.y;
  const LoggedAccess one = {site, block, (int)threadIdx.x, 0, (const char*)at - (const char*)base};
  fwrite(&one, sizeof one, 1, logged_file);
  if (threadIdx.x == 0 || site == %d) fflush(logged_file);
  return *at;
}
"""


@dataclass(frozen=True)
class LoggedSite:
    """One place in the source: the tensor, or ``shared``; whether it stores; bytes a lane; and its requests.

    ``addresses`` and ``active``: [request, 32], bytes from the start of the memory.
    """

    memory: str
    store: bool
    width: int
    addresses: np.ndarray
    active: np.ndarray


_WIDTHS = {
    "float": 4,
    "half": 2,
    "float2": 8,
    "float4": 16,
    "half2": 4,
    "uint1": 4,
    "uint2": 8,
    "uint4": 16,
    "half4": 8,
}


def logged_sites(source: str, launch: Launch, case: KernelCall, folder: Path) -> list[LoggedSite]:
    """Every access of the one kernel of ``source``, by place in the source."""
    (kernel,) = launch.kernels
    names = {f"{p.name}_ptr": p.name for p in kernel.params if isinstance(p, Pointer)} | {_SHARED: "shared"}
    start = source.index("{\n", source.rindex(f" {kernel.symbol}(")) + 2
    body, sites = _instrumented(source[start:], names, {"float": 4, "half": 2})
    log = folder / "accesses.bin"
    include = "#include <cuda.h>\n#endif"
    head = source[:start].replace(include, include + _PRELUDE % (log, len(sites) - 1), 1)
    emulate(head + body, launch, case, folder, orders=(0,))
    records = np.fromfile(log, dtype=_RECORD)
    return [
        LoggedSite(memory, store, width, *_requests(records[records["site"] == number]))
        for number, (memory, store, width) in enumerate(sites)
    ]


def _instrumented(
    body: str, names: dict[str, str], elements: dict[str, int]
) -> tuple[str, list[tuple[str, bool, int]]]:
    """``body`` with each access through ``logged``, and what each is."""
    sites: list[tuple[str, bool, int]] = []
    out, at = "", 0
    every = "|".join(map(re.escape, names))
    pattern = re.compile(
        rf"\*\((?P<vector>\w+)\*\)\((?:\(\((?P<cast>\w+)\*\)(?P<a>{every})\)|(?P<b>{every})) \+ "
        rf"|\(\((?P<element>\w+)\*\)(?P<c>{every})\)\[|\b(?P<d>{every})\[(?!\])"
    )
    while actual := pattern.search(body, at):
        name = actual["a"] or actual["b"] or actual["c"] or actual["d"]
        opened = actual.end() - 1 if actual["vector"] is None else actual.start() + len(f"*({actual['vector']}*)")
        end = _closed(body, opened)
        expression = body[actual.start() : end]
        width = _WIDTHS[actual["vector"]] if actual["vector"] else elements.get(actual["element"] or "", 0)
        if not width:
            width = -1  # An element of a tensor: its size is the pointer's.
        pointer = f"({actual['vector']}*){body[opened:end]}" if actual["vector"] else f"&({expression})"
        store = re.match(r" = ", body[end:]) is not None
        out += body[at : actual.start()] + f"logged({pointer}, {len(sites)}, {name})"
        sites.append((names[name], store, width))
        at = end
    declared = len(re.findall(rf"\w+ {_SHARED}\[\];", body))
    assert len(re.findall(rf"\b(?:{every})\b", body)) == len(sites) + declared, "an access is of no known form"
    return out + body[at:], sites


def _closed(text: str, opened: int) -> int:
    """Just behind the bracket that closes the one at ``opened``."""
    depth = 0
    for at in range(opened, len(text)):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    raise AssertionError("the source has a bracket that nothing closes")


def _requests(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A request for every warp and turn: lanes that come here as often as the others come together."""
    if not len(records):
        return np.zeros((0, 32), np.int64), np.zeros((0, 32), bool)
    order = np.lexsort((np.arange(len(records)), records["thread"], records["block"]))
    ordered = records[order]
    who = ordered["block"].astype(np.int64) * 4096 + ordered["thread"]
    first = np.concatenate([[0], np.flatnonzero(np.diff(who)) + 1])
    turn = np.arange(len(who)) - np.repeat(first, np.diff(np.append(first, len(who))))
    warp = ordered["block"].astype(np.int64) * 128 + ordered["thread"] // 32
    _, place = np.unique(warp * (1 << 24) + turn, return_inverse=True)
    addresses = np.zeros((place.max() + 1, 32), np.int64)
    active = np.zeros_like(addresses, dtype=bool)
    addresses[place, ordered["thread"] % 32] = ordered["offset"]
    active[place, ordered["thread"] % 32] = True
    return addresses, active
