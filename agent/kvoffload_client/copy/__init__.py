"""Copies of many blocks in one call, outside the GIL.

``KVOFFLOAD_COPY`` chooses ``kernel`` (a loop with non-temporal stores, compiled in the process by
llvmlite, x86-64) or ``numpy``; by default the kernel wherever it can be compiled.
Why a kernel: at 16 KiB a block it moves 1.0 times what one large memmove does, the best that
Python can do without it 0.6 to 0.8 times (``datapath.md`` section 1.3).
"""

from kvoffload_client.copy.select import BlockCopy, choose_copy

__all__ = ["BlockCopy", "choose_copy"]
