"""A kernel that copies many small ranges, compiled by the LLVM that the host's kernel uses too.

One warp moves one range, 16 bytes a thread at a time. It reads registered host memory over the bus
by itself: 12 blocks of 1,024 threads have 192 KiB on the way, which fills a link of 50 GB/s with
the 2 us that a read takes, and leave the other multiprocessors to the engine (12 is what vLLM's
kernel takes on an H100, PR #42212).
"""

from __future__ import annotations

import functools
from typing import Final

NAME: Final = b"copy_ranges"
GRID: Final = 12
THREADS: Final = 1024

# Turing, the oldest that CUDA 13 supports; the driver compiles it for the GPU that is there.
_PROCESSOR: Final = "sm_75"
_TRIPLE: Final = "nvptx64-nvidia-cuda"

IR: Final = """
target triple = "nvptx64-nvidia-cuda"

declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()

define ptx_kernel void @copy_ranges(i64 %table, i64 %count) {
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %ntid = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %cta = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %ncta = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %before = mul i32 %cta, %ntid
  %thread = add i32 %before, %tid
  %threads = mul i32 %ncta, %ntid
  %warp32 = lshr i32 %thread, 5
  %warps32 = lshr i32 %threads, 5
  %lane32 = and i32 %thread, 31
  %warp = zext i32 %warp32 to i64
  %warps = zext i32 %warps32 to i64
  %lane = zext i32 %lane32 to i64
  %begin = shl i64 %lane, 4
  %srcs = inttoptr i64 %table to ptr addrspace(1)
  %dsts = getelementptr i64, ptr addrspace(1) %srcs, i64 %count
  %lens = getelementptr i64, ptr addrspace(1) %dsts, i64 %count
  %any = icmp ult i64 %warp, %count
  br i1 %any, label %range, label %exit

range:
  %i = phi i64 [ %warp, %entry ], [ %next, %done ]
  %sp = getelementptr i64, ptr addrspace(1) %srcs, i64 %i
  %dp = getelementptr i64, ptr addrspace(1) %dsts, i64 %i
  %np = getelementptr i64, ptr addrspace(1) %lens, i64 %i
  %sv = load i64, ptr addrspace(1) %sp, align 8
  %dv = load i64, ptr addrspace(1) %dp, align 8
  %n = load i64, ptr addrspace(1) %np, align 8
  %s = inttoptr i64 %sv to ptr addrspace(1)
  %d = inttoptr i64 %dv to ptr addrspace(1)
  %some = icmp ult i64 %begin, %n
  br i1 %some, label %move, label %done

move:
  %off = phi i64 [ %begin, %range ], [ %off1, %move ]
  %from = getelementptr i8, ptr addrspace(1) %s, i64 %off
  %to = getelementptr i8, ptr addrspace(1) %d, i64 %off
  %v = load <4 x i32>, ptr addrspace(1) %from, align 16
  store <4 x i32> %v, ptr addrspace(1) %to, align 16
  %off1 = add i64 %off, 512
  %more = icmp ult i64 %off1, %n
  br i1 %more, label %move, label %done

done:
  %next = add i64 %i, %warps
  %again = icmp ult i64 %next, %count
  br i1 %again, label %range, label %exit

exit:
  ret void
}
"""


class KernelUnavailableError(Exception):
    """The kernel cannot be compiled here; the message says why."""


@functools.cache
def ptx() -> bytes:
    """Return the kernel in PTX, NVIDIA's portable assembly.

    Arguments of the kernel: the address of a table on the device, which holds all sources, then
    all destinations, then all lengths in bytes (unsigned 64-bit, each a multiple of 16), and their
    number.

    Raises:
        KernelUnavailableError: llvmlite is absent, or was built without NVIDIA's target.
    """
    try:
        from llvmlite import binding as llvm
    except (ImportError, OSError) as error:
        raise KernelUnavailableError(f"llvmlite cannot be imported: {error}") from error
    try:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        machine = llvm.Target.from_triple(_TRIPLE).create_target_machine(cpu=_PROCESSOR, opt=3)
        module = llvm.parse_assembly(IR)
        module.verify()
        assembly: str = machine.emit_assembly(module)
    except RuntimeError as error:
        raise KernelUnavailableError(f"llvmlite cannot compile it: {error}") from error
    return assembly.encode("ascii")
