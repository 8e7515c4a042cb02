"""The kernel for NVIDIA's GPUs: compiled for them, and run here with one thread after the other."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import pytest

from kvoffload_client.cuda import kernel

REGISTERS = ("tid", "ntid", "ctaid", "nctaid")


def for_this_processor() -> str:
    """The kernel with its special registers as variables that the test sets."""
    text = kernel.IR.replace("ptx_kernel ", "").replace('target triple = "nvptx64-nvidia-cuda"', "")
    for name in REGISTERS:
        text = text.replace(f"@llvm.nvvm.read.ptx.sreg.{name}.x", f"@read_{name}")
        text = text.replace(
            f"declare i32 @read_{name}()",
            f"@{name} = global i32 0\n"
            f"define i32 @read_{name}() {{\n  %v = load i32, ptr @{name}\n  ret i32 %v\n}}\n",
        )
    return text


@functools.cache
def compiled() -> Any:
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(for_this_processor()), machine)
    engine.finalize_object()
    return engine


def launch(table: np.ndarray, count: int, *, grid: int, threads: int) -> None:
    engine = compiled()
    function = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)(
        engine.get_function_address(kernel.NAME.decode())
    )
    registers = {
        name: ctypes.c_uint32.from_address(engine.get_global_value_address(name))
        for name in REGISTERS
    }
    registers["ntid"].value, registers["nctaid"].value = threads, grid
    for block in range(grid):
        for thread in range(threads):
            registers["ctaid"].value, registers["tid"].value = block, thread
            function(table.ctypes.data, count)


@pytest.mark.parametrize(("grid", "threads"), [(1, 32), (3, 64), (2, 1024)])
@pytest.mark.parametrize("count", [0, 1, 5, 70])
def test_it_moves_every_range_once_and_nothing_else(grid: int, threads: int, count: int) -> None:
    rng = np.random.default_rng(count)
    room = 2048
    source, target = (rng.integers(0, 256, (count + 1, room), dtype=np.uint8) for _ in range(2))
    lengths = 16 * rng.integers(0, room // 16, count + 1, dtype=np.uint64)
    order = rng.permutation(count + 1)
    expected = target.copy()
    for i in order[:count]:
        expected[i, : lengths[i]] = source[i, : lengths[i]]
    rows = order[:count].astype(np.uint64) * np.uint64(room)
    table = np.stack(
        (
            rows + np.uint64(source.ctypes.data),
            rows + np.uint64(target.ctypes.data),
            lengths[order[:count]],
        )
    )
    launch(np.ascontiguousarray(table), count, grid=grid, threads=threads)
    assert np.array_equal(target, expected)


def test_it_is_assembly_for_every_gpu_that_is_supported() -> None:
    text = kernel.ptx().decode()
    assert ".target sm_75" in text
    assert ".visible .entry copy_ranges(" in text
    assert "ld.global.v4.b32" in text
    assert "st.global.v4.b32" in text
