"""CPU kernels: a scheduled IRModule -> LLVM IR -> object -> shared object that needs no TVM.

Each kernel becomes the packed C function ``__tvm_ffi_<symbol>`` (``int(void*, const TVMFFIAny*, int32_t,
TVMFFIAny*)``): tensors and workspaces as opaque pointers, scalars as floats, sizes and the block index as integers. It
trusts its arguments, which the launcher has checked, so that the shared object refers to nothing but the C and maths
libraries. Code is generated for the device's micro-architecture level and features, never for the machine that builds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tirgemm.device import Device
from tirgemm.errors import BuildersUnusable, BuildFailed
from tirgemm.families.base import Program
from tirgemm.tuning.build.binary import Binary

if TYPE_CHECKING:
    from tvm import IRModule
    from tvm.target import Target
    from tvm.tirx import PrimFunc

_TRIPLE = "x86_64-unknown-linux-gnu"
_LINK_FLAGS = (
    "-shared",
    "-nostdlib",
    "-s",
    "-Wl,--build-id=none",
    "-Wl,--hash-style=gnu",
    "-Wl,-z,relro,-z,now",
    "-Wl,-z,noexecstack",
    "-Wl,--as-needed",
    "-lm",
    "-lc",
)
# Accumulators and edge tiles live on the stack of a launcher thread; more than this is a schedule gone wrong.
_MAX_STACK_BYTES = 64 * 1024
# An object and what is linked of it.
_MOST_OBJECT_BYTES = 1 << 20


def compile_program(program: Program, device: Device) -> Binary:
    """The shared object of ``program``. Raises BuildFailed; TVM's own errors pass through."""
    import tvm

    target = llvm_target(device)
    with tvm.transform.PassContext(opt_level=3, config=dict(program.pass_config)):
        lowered = _lower(program.mod, target, program.pipeline)
        module = tvm.get_global_func("target.build.llvm")(lowered, target)
    text = _without_addresses(module.inspect_source("ll"))
    _check_self_contained(text)
    data = _link(module, tuple(k.symbol for k in program.launch.kernels))
    flags = (
        f"-mtriple={_TRIPLE}",
        f"-mcpu={device.arch}",
        *(f"-mattr=+{name}" for name in device.features),
        *_LINK_FLAGS,
    )
    sources = {"kernel.ll": text, "module.py": program.mod.script()}
    return Binary(data, "so", program.launch, sources, flags, {"code_bytes": len(data)})


def llvm_target(device: Device) -> Target:
    """The LLVM target of exactly ``device``'s level and features."""
    from tvm.target import Target

    if device.kind != "cpu" or not re.fullmatch(r"x86-64(-v[234])?", device.arch):
        raise BuildFailed(f"CPU kernels are compiled for x86-64 levels, not for {device.kind} {device.arch!r}")
    attributes = [f"+{name}" for name in device.features]
    target: dict[str, Any] = {"kind": "llvm", "mtriple": _TRIPLE, "mcpu": device.arch, "mattr": attributes}
    return Target(target | {"host": target})


def _lower(mod: IRModule, target: Target, pipeline: str) -> IRModule:
    from tvm import IRModule, tirx

    mod = IRModule({var.name_hint: _with_pointers(func) for var, func in mod.functions.items()})
    mod = tirx.transform.BindTarget(target)(mod)
    lower, finalize, _ = tirx.get_tir_pipeline(pipeline)
    mod = tirx.transform.SkipAssert()(lower(mod))
    mod = IRModule({var.name_hint: _on_stack(func) for var, func in mod.functions.items()})
    return finalize()(mod)


def _with_pointers(func: PrimFunc) -> PrimFunc:
    """``func`` taking bare addresses where it took tensors."""
    from tvm import ir, tirx
    from tvm.tirx.buffer import is_buffer_var

    params, declared = [], []
    for param in func.params:
        if is_buffer_var(param):
            pointer = tirx.Var(param.name, ir.PointerType(param.ty.dtype, "global"))
            params.append(pointer)
            declared.append(tirx.DeclBuffer(param, data=pointer))
        else:
            params.append(param)
    return tirx.PrimFunc(params, tirx.SeqStmt([*declared, func.body]), func.ret_type, func.attrs)


def _on_stack(func: PrimFunc) -> PrimFunc:
    """``func`` with every local buffer left to LLVM, which keeps it in registers or on the stack.

    Otherwise TVM would ask its runtime for those above 1 KiB, which a register tile is.
    """
    from tvm import tirx
    from tvm_ffi.structural import structural_map

    total = 0

    def keep(node: Any) -> Any:
        nonlocal total
        buffer = node.buffer
        dtype = buffer.ty.dtype.dtype
        elements = 1
        for extent in buffer.ty.shape:
            if not isinstance(extent, tirx.IntImm):
                raise BuildFailed(
                    f"local buffer {buffer.name} has the run-time extent {extent}; a kernel's must be constant"
                )
            elements *= int(extent)
        total += elements * ((dtype.bits * dtype.lanes + 7) // 8)
        return tirx.AllocBuffer(buffer, {**dict(node.annotations), "disable_lower_builtin": tirx.IntImm("bool", 1)})

    body = structural_map(func.body, (tirx.AllocBuffer, keep))
    if total > _MAX_STACK_BYTES:
        raise BuildFailed(f"local buffers take {total} bytes; the limit of a kernel's stack is {_MAX_STACK_BYTES}")
    # An entry function would get a second copy of itself under TVM's own name.
    return func.with_body(body).without_attr("tirx.is_entry_func")


def _without_addresses(text: str) -> str:
    """The LLVM IR with the alias classes, which TVM names by where its own objects lie in memory, numbered instead."""
    seen: dict[str, str] = {}
    return re.sub(r'"0x[0-9a-f]+(?=[."])', lambda address: seen.setdefault(address[0], f'"alias{len(seen)}'), text)


def _check_self_contained(text: str) -> None:
    called = re.search(r"@(__)?(TVM\w+)", text)
    if called:
        raise BuildFailed(
            f"the kernel calls {called[2]} of the TVM runtime; CPU kernels may not (is a parallel loop left?)"
        )


def _link(module: Any, symbols: tuple[str, ...]) -> bytes:
    """The stripped shared object, which exports the kernels alone."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang", "g++"))), None)
    if compiler is None:
        words = "no C compiler driver (cc, gcc, clang or g++) is on the PATH to link the kernel; install one"
        raise BuildersUnusable(words)
    with tempfile.TemporaryDirectory(prefix="tirgemm-link-") as folder:
        at = Path(folder)
        with (at / "kernel.o").open("wb") as file:  # where its disk is full LLVM would end this process
            os.posix_fallocate(file.fileno(), 0, _MOST_OBJECT_BYTES)
        module.write_to_file(str(at / "kernel.o"), "o")
        exported = "".join(f"__tvm_ffi_{symbol};" for symbol in symbols)
        (at / "exports").write_text(f"{{ global: {exported} local: *; }};")
        command = [compiler, "-o", "kernel.so", "kernel.o", "-Wl,--version-script=exports", *_LINK_FLAGS]
        done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
        if done.returncode:
            # Of every config it is asked for the same, but for names: none makes it fail.
            raise BuildersUnusable(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")
        return (at / "kernel.so").read_bytes()
