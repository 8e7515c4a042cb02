"""A fake GPU: its memory is the host's, its stream a thread, its failures are a test's.

It keeps CUDA's rules that copies must keep: a batch or a kernel uses registered memory alone, and
no copy crosses from one registered range into another.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from kvoffload_client.carrier import Addresses, DeviceError
from kvoffload_client.cuda.plan import Abilities


@dataclass(eq=False)
class FakeMark:
    gpu: FakeGpu
    done: threading.Event = field(default_factory=threading.Event)

    def reached(self) -> bool:
        if self.gpu.broken:
            raise DeviceError("cuEventQuery: CUDA_ERROR_LAUNCH_FAILED")
        return self.done.is_set()

    def close(self) -> None:
        self.gpu.open_marks.discard(self)


class FakeGpu:
    """A ``Device``. ``engine`` set: what its engine queued is done. ``hold`` set: copies go."""

    def __init__(self, *, batch: bool = True, kernel: bool = True) -> None:
        self.abilities = Abilities(batch=batch, kernel=kernel)
        self.registered: dict[int, int] = {}
        self.ever_registered: list[int] = []
        self.refuse_registration = False
        self.refuse_copies = False
        self.broken = False
        self.open_marks: set[FakeMark] = set()
        self.engine = threading.Event()
        self.engine.set()
        self.hold = threading.Event()
        self.hold.set()
        self.copied: list[tuple[str, int]] = []

    def stream(self) -> FakeStream:
        return FakeStream(self)

    def mark(self) -> FakeMark:
        mark = self.new_mark()
        threading.Thread(target=lambda: (self.engine.wait(10), mark.done.set())).start()
        return mark

    def new_mark(self) -> FakeMark:
        mark = FakeMark(self)
        self.open_marks.add(mark)
        return mark

    def register(self, address: int, nbytes: int) -> None:
        if self.refuse_registration:
            raise DeviceError("cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY")
        assert address not in self.registered
        self.registered[address] = nbytes
        self.ever_registered.append(address)

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def piece_of(self, address: int, nbytes: int) -> int | None:
        """Return the registered range of a copy's host side; None: it is not registered."""
        for start, size in self.registered.items():
            if start <= address < start + size:
                assert address + nbytes <= start + size, "it crosses a registered range's end"
                return start
            assert not address < start < address + nbytes, "it crosses into a registered range"
        return None


class FakeStream:
    """A ``Stream``."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self._queue: queue.Queue[Callable[[], object]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def copy(self, src: int, dst: int, nbytes: int) -> None:
        self._put("single", [(src, dst, nbytes)])

    def copy_batch(self, src: Addresses, dst: Addresses, lengths: Addresses) -> None:
        self._put("batch", self._checked(src, dst, lengths))

    def copy_kernel(self, src: Addresses, dst: Addresses, lengths: Addresses) -> None:
        self._put("kernel", self._checked(src, dst, lengths))

    def record(self) -> FakeMark:
        mark = self._gpu.new_mark()
        self._queue.put(mark.done.set)
        return mark

    def synchronize(self) -> None:
        mark = self.record()
        assert mark.done.wait(10)
        mark.close()

    def _checked(
        self, src: Addresses, dst: Addresses, lengths: Addresses
    ) -> list[tuple[int, int, int]]:
        copies = list(zip(src.tolist(), dst.tolist(), lengths.tolist(), strict=True))
        for source, target, nbytes in copies:
            sides = [self._gpu.piece_of(address, nbytes) for address in (source, target)]
            assert sides.count(None) == 1, "one side is registered memory, the other the GPU's"
        return copies

    def _put(self, method: str, copies: list[tuple[int, int, int]]) -> None:
        if self._gpu.refuse_copies or self._gpu.broken:
            raise DeviceError(f"{method}: CUDA_ERROR_INVALID_VALUE")
        self._gpu.copied.append((method, len(copies)))

        def move() -> None:
            for src, dst, nbytes in copies:
                ctypes.memmove(dst, src, nbytes)

        self._queue.put(move)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            self._gpu.hold.wait(10)
            item()
