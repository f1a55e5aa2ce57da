"""Memory effects of the intrinsics that TIR calls by name.

A name that is in none of these tables, and may touch memory, ends up among the kernel's unknowns.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tirgemm.analysis.banks import core_matrix
from tirgemm.analysis.banks.wavefronts import NOWHERE
from tirgemm.analysis.ir import inline_source
from tirgemm.analysis.ir.expressions import LANE, IrExpr, add, const, make, scale, symbol, under, unknown
from tirgemm.analysis.ir.sites import TO_SEVERAL, SiteSpace

_PTX_TYPE = re.compile(r"(?:bf|[bfsu])(\d+)(?:x(\d))?")
_SPACES: dict[str, SiteSpace] = {
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "distributed",
    "global": "global",
}
# Instructions that move no data between lanes and memory: conversions, barriers, and mbarriers, whose traffic is
# waiting.
_INERT = re.compile(
    r"ptx\.(cvt\w*|fence\w*|bar_\w+|barrier_\w+|setmaxnreg|griddepcontrol|prefetch\w*|mapa\w*|mbarrier_\w+|mma\w*|mov\w*|"
    r"wgmma_(fence|commit_group|wait_group)|cp_async_(commit_group|wait_group|wait_all|mbarrier_arrive)|"
    r"cp_async_bulk_(commit_group|wait_group)|addr|elect_sync|createpolicy\w*|ex2\w*|rcp\w*|tanh\w*|add\w*|mul\w*|fma\w*)|"
    r"cuda\.(\w*sync|mbarrier_wait\w*|wgmma_encode_matrix_descriptor|wgmma_noop_barrier|cvta_generic_to_shared|thread_rank|"
    r"thread_fence|__shfl_\w+|elect_sync|half2float|float\w+|uint_as_float|make_float2|bfloat\w+|h(min|max)2)|"
    r"ptx_legacy\.mma|tvm_(mma_sync|fill_fragment|access_ptr|storage_sync|thread_allreduce)|mma_fill\w*|"
    r"buffer_data|address_of|reinterpret|ptr_byte_offset|if_then_else|likely|ret|call_pure_extern|assume|break|continue"
)
_PURE = 1
# Functions of inline source that compute: their argument, and zero for addresses as aligned as can be.
_SAME, _ZERO = ("tirgemm_opaque",), ("tirgemm_phase",)

Visit = Callable[[Any, Any], None]


def visit(walker: Any, name: str, call: Any) -> None:
    """Add the sites of one call; a call that is not known and may touch memory becomes an unknown."""
    if name == "cuda.func_call":
        _function(walker, call)
        return
    for pattern, method in _TOUCHING:
        if re.fullmatch(pattern, name):
            method(walker, call)
            return
    if _INERT.fullmatch(name):
        if name == "cuda.wgmma_encode_matrix_descriptor":
            _descriptor(walker, call)
        elif name.startswith("ptx.mapa"):
            # Where the same place is in another block, which has the same banks.
            walker.assign(call.args[0].source, call.args[0].indices, call.args[1])
        return
    if name in ("call_extern", "call_packed") or name.startswith(("ptx", "cuda.")) or not _is_pure(call):
        label = str(call.args[0].value) if name == "call_extern" else name
        walker.unmodelled(
            label, "an instruction that this analysis does not know; what it does to memory is not counted"
        )


def function_value(walker: Any, call: Any) -> tuple[IrExpr, Any]:
    """The value of a function of inline source."""
    name = str(call.args[0].value)
    if name in _SAME:
        pair: tuple[IrExpr, Any] = walker.pointing(call.args[1])
        return pair
    if name in _ZERO:
        return const(0), None
    return unknown(f"what {name} returns"), None


def _function(walker: Any, call: Any) -> None:
    """A function of inline source: what the instructions in it do, or an unknown."""
    name, *arguments = call.args
    label, source = str(name.value), str(arguments[-1].value) if type(arguments[-1]).__name__ == "StringImm" else ""
    pointed = [walker.pointing(a) for a in arguments if type(a).__name__ != "StringImm"]
    memory = {n for n, (_, b) in enumerate(pointed) if b is not None and walker.space_of(b) is not None}
    if label in (*_SAME, *_ZERO) or not memory:
        return
    inlined = inline_source.function(label, source)
    taken = (
        {n for i in inlined.instructions for t in (i.pointer, i.source) if t for n in t.places} if inlined else set()
    )
    if inlined is None or inlined.unknown or memory - taken:
        what = f" ({', '.join(inlined.unknown)})" if inlined is not None and inlined.unknown else ""
        walker.unmodelled(label, f"a function of inline source{what}; what it does to memory is not counted")
        return
    for one in inlined.instructions:
        _inline(walker, one, pointed)


def _inline(walker: Any, one: inline_source.InlineAccess, pointed: list[tuple[IrExpr, Any]]) -> None:
    address, buffer = _meant(one.pointer, pointed)
    others = [b for n, (_, b) in enumerate(pointed) if b is not None and n not in one.pointer.places]
    if one.op in ("ldmatrix", "stmatrix"):
        for other in others:
            walker.provenance.move(*((other, [buffer]) if one.op == "ldmatrix" else (buffer, [other])))
        given = others if one.op == "stmatrix" else ()
        _rows(walker, buffer, address, one.op, one.matrices, one.transposed, owners=given)
    elif one.source is not None:
        origin, memory = _meant(one.source, pointed)
        walker.provenance.move(buffer, [memory])
        reads = () if one.size is None else (make("lt", const(0), _meant(one.size, pointed)[0]),)
        walker.site(memory, origin, "copy", "global", one.width, guards=reads)
        walker.site(buffer, address, "copy", "shared", one.width, owners=(memory,), source=_read(origin, reads))
    else:
        for other in others:
            walker.provenance.move(*((other, [buffer]) if one.op == "load" else (buffer, [other])))
        space = one.space or walker.space_of(buffer)
        if space:
            given = others if one.op == "store" and space == "shared" else ()
            walker.site(buffer, address, one.op, space, one.width, owners=given)


def _read(origin: IrExpr, conditions: tuple[IrExpr, ...]) -> IrExpr:
    """Where a copy reads, NOWHERE in lanes that read nothing and write zeros."""
    address = under(origin, conditions)
    for condition in conditions:
        address = make("select", condition, address, const(NOWHERE))
    return address


def _meant(term: inline_source.Term, pointed: list[tuple[IrExpr, Any]]) -> tuple[IrExpr, Any]:
    """What a term of a function is for the arguments of a call."""
    if term.choice:
        condition, yes, no = (_meant(part, pointed) for part in term.choice)
        return make("select", condition[0], yes[0], no[0]), yes[1] if yes[1] is not None else no[1]
    return pointed[term.place] if term.place >= 0 else (const(term.number), None)


def _is_pure(call: Any) -> bool:
    kind = call.op.get_attr("TCallEffectKind") if hasattr(call.op, "get_attr") else None
    return kind is not None and int(kind) <= _PURE


def _words(call: Any) -> list[str]:
    return [str(a.value) for a in call.args if type(a).__name__ == "StringImm"]


def _operands(call: Any) -> list[Any]:
    return [a for a in call.args if type(a).__name__ != "StringImm"]


def _vector(words: list[str]) -> int:
    return next((int(w[1:]) for w in words if re.fullmatch(r"v\d", w)), 1)


def _type_bytes(words: list[str]) -> int:
    """Bytes of the type that is among the words; 4 where none is."""
    types = filter(None, map(_PTX_TYPE.fullmatch, words))
    return next((int(bits) * int(count or 1) // 8 for bits, count in (each.groups() for each in types)), 4)


def _plain(walker: Any, call: Any) -> None:
    """ld and st: space, vector and type are among the words."""
    words, operands = _words(call), _operands(call)
    count = _vector(words)
    load = ".ld" in str(call.op.name)
    width = count * _type_bytes(words)
    space = next((_SPACES[w] for w in words if w in _SPACES), None)
    address, buffer = walker.pointing(operands[count] if load else operands[0])
    if space is None:
        walker.unmodelled(str(call.op.name), "an access of an address whose space is not said; it is not counted")
        return
    values = operands[:count] if load else operands[1 : 1 + count]
    _exchange(walker, buffer, values, load)
    walker.site(buffer, address, "load" if load else "store", space, width)


def _exchange(walker: Any, buffer: Any, values: list[Any], load: bool) -> None:
    """Data flows between memory and registers."""
    for value in values:
        source = getattr(value, "source", None)
        if source is None and type(value).__name__ == "Call":
            source = walker.pointing(value)[1]
        if load and source is not None:
            walker.provenance.move(source, [buffer])
            walker.filled(value, buffer)
        elif not load:
            walker.provenance.flow(buffer, value)


def _ldg(walker: Any, call: Any) -> None:
    """cuda.ldg: destinations, the address, then type and vector."""
    words, operands = _words(call), _operands(call)
    count = _vector(words)
    bits = re.search(r"(\d+)$", words[0])
    pointers = [a for a in operands if type(a).__name__ == "Call"]
    address, buffer = walker.pointing(pointers[-1])
    _exchange(walker, buffer, pointers[:-1], True)
    walker.site(buffer, address, "load", "global", count * int(bits[1] if bits else 32) // 8)


def _matrices(walker: Any, call: Any) -> None:
    """ldmatrix and stmatrix of TIRx: the address is behind the destinations, or before the sources."""
    words, operands = _words(call), _operands(call)
    load = "ldmatrix" in str(call.op.name)
    count = next((int(w[1:]) for w in words if re.fullmatch(r"x\d", w)), 1)
    address, buffer = walker.pointing(operands[count] if load else operands[0])
    _exchange(walker, buffer, operands[:count] if load else operands[1 : 1 + count], load)
    _rows(walker, buffer, address, "ldmatrix" if load else "stmatrix", count, "trans" in words)


def _legacy_ldmatrix(walker: Any, call: Any) -> None:
    """ldmatrix of TensorIR: transposed, matrices, type, destination, its offset, source, its offset in elements."""
    transposed, count, _, destination, _, source, offset = call.args
    base, buffer = walker.pointing(source)
    _, target = walker.pointing(destination)
    walker.provenance.move(target, [buffer])
    size = _element(str(call.ty.dtype))
    address = add(base, scale(walker.integer(offset), size))
    _rows(walker, buffer, address, "ldmatrix", int(count.value), bool(int(transposed.value)))


def _rows(walker: Any, buffer: Any, address: IrExpr, op: str, count: int, transposed: bool, **more: Any) -> None:
    named = () if count == 4 else (make("lt", symbol(LANE), const(8 * count)),)
    walker.site(buffer, address, op, "shared", 16, guards=named, matrices=count, transposed=transposed, **more)


def _copy_raw(walker: Any, call: Any) -> None:
    """cp.async of TensorIR: pointers with offsets in elements, bytes, and maybe a predicate, without which it stores
    zeros."""
    to, to_offset, source, source_offset, size, *predicate = call.args
    element = _element(str(call.ty.dtype))
    (target, into), (origin, memory) = walker.pointing(to), walker.pointing(source)
    target = add(target, scale(walker.integer(to_offset), element))
    origin = add(origin, scale(walker.integer(source_offset), element))
    walker.provenance.move(into, [memory])
    width = int(size.value)
    holds = tuple(walker.integer(p) for p in predicate)
    walker.site(memory, origin, "copy", "global", width, guards=holds)
    walker.site(into, target, "copy", "shared", width, owners=(memory,), guards=holds, source=origin)
    for condition in holds:
        walker.site(into, target, "store", "shared", width, guards=(make("not", condition),), detail="zeros")


def _copy(walker: Any, call: Any) -> None:
    """cp.async of TIRx: to, from, bytes, and maybe how many of them are read; the rest is zeros."""
    to, source, size, *more = _operands(call)
    (target, into), (origin, memory) = walker.pointing(to), walker.pointing(source)
    walker.provenance.move(into, [memory])
    reads = (make("lt", const(0), walker.integer(more[0])),) if "src_size" in str(call.op.name) else ()
    width = int(size.value)
    walker.site(memory, origin, "copy", "global", width, guards=reads)
    walker.site(into, target, "copy", "shared", width, owners=(memory,), source=_read(origin, reads))


def map_name(variable: Any) -> str:
    """What a descriptor is called: its parameter's name without the ending."""
    return str(variable.name).removesuffix("_map")


def _bulk(walker: Any, call: Any) -> None:
    """TMA: a tile between shared memory and a tensor, by the descriptor of its map."""
    pointers = [walker.pointing(a) for a in _operands(call)]
    tiles = [(a, b) for a, b in pointers if b is not None and b not in walker.maps]
    maps = [b for _, b in pointers if b is not None and b in walker.maps]
    if not maps or not tiles:
        walker.unmodelled(str(call.op.name), "a bulk copy between what this analysis cannot tell; it is not counted")
        return
    store = "s2g" in str(call.op.name) or "reduce" in str(call.op.name)
    (address, buffer), tensor = tiles[0], walker.maps[maps[0]]
    walker.provenance.alias(maps[0], tensor)
    walker.provenance.move(*((maps[0], [buffer]) if store else (buffer, [maps[0]])))
    multicast = TO_SEVERAL if "multicast::cluster" in _words(call) else ""
    name = map_name(maps[0])
    detail = f"TMA {'store' if store else 'load'} by {name}{multicast}"
    walker.site(buffer, address, "bulk", "shared", 0, detail=detail, tensor_map=name)


def _wgmma(walker: Any, call: Any) -> None:
    """wgmma: its operands in shared memory, by their descriptors."""
    shape = next((w for w in _words(call) if re.fullmatch(r"m64n\d+k\d+", w)), "")
    for operand in _operands(call):
        if "uint64" not in str(getattr(getattr(operand, "ty", None), "dtype", "")):
            continue
        address, buffer = walker.pointing(operand)
        if buffer is not None:
            swizzle = walker.descriptors.get(buffer, "of a descriptor that this analysis cannot tell")
            walker.site(buffer, address, "matrix", "shared", 0, detail=f"wgmma {shape}, {swizzle}")


def _descriptor(walker: Any, call: Any) -> None:
    """A register that describes a tile for wgmma."""
    target, source, _, _, swizzle = call.args
    load = target.args[0]
    index = walker.place(load.source, load.indices)
    _, buffer = walker.pointing(source)
    walker.pointees[walker.register_name(load.source, index)] = buffer
    number = walker.integer(swizzle)
    walker.descriptors[buffer] = core_matrix.described(int(number.value) if number.kind == "const" else -1)


def _fragment(walker: Any, call: Any) -> None:
    """wmma loads and stores of 16 x 16 elements: ldmatrix.x4, and four stores of two elements a lane.

    Seen in the machine code of sm_80 to sm_90a. Which matrix of the four comes first does not change what is counted.
    """
    fragment, m, n, k, _, pointer, stride, layout = call.args
    load = "load_matrix" in str(call.op.name)
    address, buffer = walker.pointing(pointer)
    _, registers = walker.pointing(fragment)
    walker.provenance.move(*((registers, [buffer]) if load else (buffer, [registers])))
    size, scope = _element(str(registers.dtype)), str(registers.scope())
    sizes = tuple(int(walker.integer(x).value) for x in (m, n, k))
    row = str(layout.value) == "row_major"
    if sizes != (16, 16, 16) or walker.space_of(buffer) != "shared" or (load and size != 2) or not (load or row):
        walker.unmodelled(
            f"{_short(call)} of {'x'.join(map(str, sizes))} {registers.dtype}",
            "a fragment that this analysis does not know the instructions of; it is not counted",
        )
        return
    pitch, lane = walker.integer(stride), symbol(LANE)
    if load:
        named = make("mul", make("and", lane, const(15)), pitch)
        column = scale(make("shr", lane, const(4)), 8)
        at = add(address, scale(add(named, column), size))
        _rows(walker, buffer, at, "ldmatrix", 4, row == scope.endswith("matrix_b"))
        return
    named = make("mul", make("shr", lane, const(2)), pitch)
    first = add(address, scale(add(named, scale(make("and", lane, const(3)), 2)), size))
    for down, across in ((0, 0), (1, 0), (0, 1), (1, 1)):
        at = add(first, scale(add(scale(pitch, 8 * down), 8 * across), size))
        walker.site(buffer, at, "store", "shared", 2 * size)


def _short(call: Any) -> str:
    return str(call.op.name).removeprefix("tirx.")


def _atomic(walker: Any, call: Any) -> None:
    pointers = [(a, b) for a, b in map(walker.pointing, _operands(call)) if b is not None]
    words = _words(call)
    width = _vector(words) * _type_bytes(words)
    if not pointers:
        walker.unmodelled(str(call.op.name), "an atomic operation on an address that this analysis cannot tell")
        return
    address, buffer = pointers[0]
    space = next((_SPACES[w] for w in words if w in _SPACES), None) or walker.space_of(buffer) or "global"
    walker.site(buffer, address, "atomic", space, width)


def _element(dtype: str) -> int:
    match = re.search(r"(\d+)$", dtype)
    return max(1, int(match[1]) // 8) if match else 1


_TOUCHING: tuple[tuple[str, Visit], ...] = (
    (r"ptx\.(ld|st)(_vec\w*)?", _plain),
    (r"cuda\.ldg", _ldg),
    (r"ptx\.(ld|st)matrix", _matrices),
    (r"ptx_legacy\.ldmatrix", _legacy_ldmatrix),
    (r"s_tir\.cp_async_raw", _copy_raw),
    (r"ptx\.cp_async_c[ag](_src_size)?", _copy),
    (r"ptx\.cp_(async|reduce_async)_bulk_tensor_(g2s|s2g)\w*|ptx\.cp_reduce_async_bulk_tensor", _bulk),
    (r"ptx\.wgmma_(f16|bf16|tf32|fp8|int)\w*", _wgmma),
    (r"tvm_(load|store)_matrix_sync", _fragment),
    (r"ptx\.(atom|red)\w*|atomic_add|cuda\.atomic_add", _atomic),
)
