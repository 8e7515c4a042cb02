"""The compiled copy: non-temporal stores, with the next block prefetched meanwhile.

Source of the shape: ``datapath.md`` sections 1.2 and 1.3. Non-temporal stores spare the read that a
normal store makes of each line it overwrites, which is a third of the memory traffic. Prefetching
the head of the next block hides the misses that start every random block.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# Below this, alignment and the fence cost more than normal stores do.
_SMALL_BYTES: Final = 256
# How much of the next block is prefetched: one page, after which the hardware has taken over.
_PREFETCH_BYTES: Final = 4096

_PREFETCH: Final = """
  %next.at = getelementptr i8, ptr %next, i64 %off
  call void @llvm.prefetch.p0(ptr %next.at, i32 0, i32 2, i32 1)
  %next.at2 = getelementptr i8, ptr %next.at, i64 64
  call void @llvm.prefetch.p0(ptr %next.at2, i32 0, i32 2, i32 1)
"""


def _move_128(tag: str, off: str) -> str:
    """Return IR that moves 128 bytes from %s1 plus an offset to the 32-byte aligned %d1 plus it."""
    lines = [
        f"  %{tag}.s = getelementptr i8, ptr %s1, i64 %{off}",
        f"  %{tag}.d = getelementptr i8, ptr %d1, i64 %{off}",
    ]
    for part in range(4):
        at = f"{tag}.{part}"
        lines += [
            f"  %{at}.sp = getelementptr i8, ptr %{tag}.s, i64 {32 * part}",
            f"  %{at}.v = load <4 x i64>, ptr %{at}.sp, align 1",
        ]
    for part in range(4):
        at = f"{tag}.{part}"
        lines += [
            f"  %{at}.dp = getelementptr i8, ptr %{tag}.d, i64 {32 * part}",
            f"  store <4 x i64> %{at}.v, ptr %{at}.dp, align 32, !nontemporal !0",
        ]
    return "\n".join(lines)


_MODULE: Final = f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare void @llvm.x86.sse.sfence()

define void @copy_blocks(ptr %srcs, ptr %dsts, ptr %lens, i64 %count) {{
entry:
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %block, label %exit

block:
  %i = phi i64 [ 0, %entry ], [ %i1, %done ]
  %i1 = add i64 %i, 1
  %sp = getelementptr i64, ptr %srcs, i64 %i
  %dp = getelementptr i64, ptr %dsts, i64 %i
  %np = getelementptr i64, ptr %lens, i64 %i
  %sv = load i64, ptr %sp
  %dv = load i64, ptr %dp
  %n = load i64, ptr %np
  %s = inttoptr i64 %sv to ptr
  %d = inttoptr i64 %dv to ptr
  %more = icmp slt i64 %i1, %count
  %nexti = select i1 %more, i64 %i1, i64 %i
  %nextp = getelementptr i64, ptr %srcs, i64 %nexti
  %nextv = load i64, ptr %nextp
  %next = inttoptr i64 %nextv to ptr
  %small = icmp ult i64 %n, {_SMALL_BYTES}
  br i1 %small, label %plain, label %aligned

plain:
  call void @llvm.memcpy.p0.p0.i64(ptr %d, ptr %s, i64 %n, i1 false)
  br label %done

aligned:
  %neg = sub i64 0, %dv
  %head = and i64 %neg, 31
  call void @llvm.memcpy.p0.p0.i64(ptr %d, ptr %s, i64 %head, i1 false)
  %s1 = getelementptr i8, ptr %s, i64 %head
  %d1 = getelementptr i8, ptr %d, i64 %head
  %n1 = sub i64 %n, %head
  %end = and i64 %n1, -128
  %cap = icmp ult i64 %end, {_PREFETCH_BYTES}
  %split = select i1 %cap, i64 %end, i64 {_PREFETCH_BYTES}
  br label %first

first:
  %off = phi i64 [ 0, %aligned ], [ %off1, %first ]
{_PREFETCH}
{_move_128("a", "off")}
  %off1 = add i64 %off, 128
  %firstmore = icmp ult i64 %off1, %split
  br i1 %firstmore, label %first, label %restcheck

restcheck:
  %hasrest = icmp ult i64 %off1, %end
  br i1 %hasrest, label %rest, label %tail

rest:
  %roff = phi i64 [ %off1, %restcheck ], [ %roff1, %rest ]
{_move_128("r", "roff")}
  %roff1 = add i64 %roff, 128
  %restmore = icmp ult i64 %roff1, %end
  br i1 %restmore, label %rest, label %tail

tail:
  %ts = getelementptr i8, ptr %s1, i64 %end
  %td = getelementptr i8, ptr %d1, i64 %end
  %left = and i64 %n1, 127
  call void @llvm.memcpy.p0.p0.i64(ptr %td, ptr %ts, i64 %left, i1 false)
  br label %done

done:
  %again = icmp slt i64 %i1, %count
  br i1 %again, label %block, label %fence

fence:
  call void @llvm.x86.sse.sfence()
  br label %exit

exit:
  ret void
}}

!0 = !{{i32 1}}
"""


class KernelUnavailableError(Exception):
    """The kernel cannot be compiled on this machine; the message says why."""


# The engine that owns the machine code; it must live as long as the function is used.
_alive: list[Any] = []


@functools.cache
def compiled_copy() -> Callable[[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]], None]:
    """Return the compiled copy; it releases the GIL, and its stores are visible when it returns.

    Raises:
        KernelUnavailableError: not x86-64, or llvmlite is absent or cannot compile.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise KernelUnavailableError(f"{platform.machine()} is not x86-64")
    function = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
    )(_compile())

    def copy(src: NDArray[np.uint64], dst: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> None:
        function(src.ctypes.data, dst.ctypes.data, lengths.ctypes.data, len(src))

    return copy


def _compile() -> int:
    """Return the address of the kernel, compiled for this processor."""
    try:
        from llvmlite import binding as llvm
    except (ImportError, OSError) as error:
        raise KernelUnavailableError(f"llvmlite cannot be imported: {error}") from error
    try:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
        )
        module = llvm.parse_assembly(_MODULE)
        module.verify()
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        address = int(engine.get_function_address("copy_blocks"))
    except RuntimeError as error:
        raise KernelUnavailableError(f"llvmlite cannot compile it: {error}") from error
    _alive.append(engine)
    return address
