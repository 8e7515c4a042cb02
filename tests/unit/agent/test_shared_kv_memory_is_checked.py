"""KV memory that an engine shares is opened only if no engine can harm the agent with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.content import make_kv_file

from kvoffload_agent.copying.files import TensorCopy
from kvoffload_agent.copying.tensors import FILE_BYTES, SharedTensors, ShareError
from kvoffload_api.wire.copying import Share, SharedLayer
from kvoffload_client.copy import choose_copy
from kvoffload_client.layout import KVLayer

BLOCK = 4096
BLOCKS = 16
SIZE = BLOCK * BLOCKS


def layer(**fields: int) -> SharedLayer:
    defaults = {
        "file": 0, "offset": 0, "num_blocks": BLOCKS, "block_stride": BLOCK, "block_bytes": BLOCK
    }  # fmt: skip
    return SharedLayer(**(defaults | fields))


def share(*layers: SharedLayer, files: int = 1) -> Share:
    return Share(files=files, groups=[list(layers)])


def kv_file(*, sealed: bool, touched: bool = True) -> int:
    fd = make_kv_file(SIZE, sealed=sealed)
    if touched:
        os.pwrite(fd, np.random.default_rng(1).bytes(SIZE), 0)
    return fd


@pytest.fixture(params=[True, False], ids=["sealed", "shm"])
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[SharedTensors, int]]:
    fd = kv_file(sealed=request.param)
    tensors = SharedTensors(share(layer()), [os.dup(fd)], block_bytes=[BLOCK])
    yield tensors, fd
    tensors.close()
    os.close(fd)


def address(found: KVLayer) -> int:
    assert isinstance(found.memory, int)
    return found.memory


def test_only_a_file_that_cannot_shrink_is_mapped() -> None:
    with ExitStack() as stack:
        for sealed in (True, False):
            tensors = SharedTensors(share(layer()), [kv_file(sealed=sealed)], block_bytes=[BLOCK])
            stack.callback(tensors.close)
            assert (tensors.files[0].mapping is not None) is sealed
            assert (address(tensors.memory[0][0]) < FILE_BYTES) is sealed


def test_bytes_go_both_ways(opened: tuple[SharedTensors, int]) -> None:
    tensors, fd = opened
    copy = TensorCopy(tensors, choose_copy()[1])
    memory = np.zeros(SIZE, dtype=np.uint8)
    base = np.uint64(address(tensors.memory[0][0]))
    rows = np.array([5, 2, 9], dtype=np.uint64) * np.uint64(BLOCK)
    places = np.uint64(memory.ctypes.data) + np.arange(3, dtype=np.uint64) * np.uint64(BLOCK)
    lengths = np.full(3, BLOCK, dtype=np.uint64)
    copy(base + rows, places, lengths)
    expected = b"".join(os.pread(fd, BLOCK, int(row)) for row in rows)
    assert memory[: 3 * BLOCK].tobytes() == expected
    memory[:] = 7
    copy(places, base + rows, lengths)
    assert os.pread(fd, BLOCK, 9 * BLOCK) == b"\7" * BLOCK
    assert os.pread(fd, BLOCK, 8 * BLOCK) != b"\7" * BLOCK


def test_a_file_that_was_cut_off_fails_the_copy_and_not_the_agent() -> None:
    fd = kv_file(sealed=False)
    tensors = SharedTensors(share(layer()), [os.dup(fd)], block_bytes=[BLOCK])
    os.ftruncate(fd, BLOCK)
    memory = np.zeros(BLOCK, dtype=np.uint8)
    one = np.array([BLOCK], dtype=np.uint64)
    source = np.array([address(tensors.memory[0][0]) + 5 * BLOCK], dtype=np.uint64)
    with pytest.raises(OSError, match="KV memory"):
        TensorCopy(tensors, choose_copy()[1])(
            source, np.array([memory.ctypes.data], dtype=np.uint64), one
        )
    tensors.close()
    os.close(fd)


@pytest.mark.parametrize(
    ("shared", "problem"),
    [
        (share(layer(file=1)), "file 1 of 1"),
        (share(layer(file=-1)), "file -1 of 1"),
        (share(layer(offset=1)), f"ends at byte {SIZE + 1}"),
        (share(layer(offset=-BLOCK)), "ends at byte"),
        (share(layer(num_blocks=BLOCKS + 1)), "ends at byte"),
        (share(layer(num_blocks=0)), "has 0 blocks"),
        (share(layer(num_blocks=1 << 62)), "blocks"),
        (share(layer(block_stride=BLOCK - 1)), "do not fit a stride"),
        (share(layer(block_stride=1 << 62)), "do not fit a stride"),
        (share(layer(block_bytes=0)), "registered were"),
        (share(layer(), layer()), f"{2 * BLOCK} bytes, registered were {BLOCK}"),
        (share(), "has 0 bytes, registered were"),
        (Share(files=1, groups=[]), "0 groups are shared of 1"),
    ],
)
def test_layers_outside_their_file_are_refused(shared: Share, problem: str) -> None:
    fd = kv_file(sealed=True)
    with pytest.raises(ShareError, match=problem):
        SharedTensors(shared, [fd], block_bytes=[BLOCK])
    with pytest.raises(OSError):
        os.fstat(fd)


@pytest.mark.parametrize("sealed", [True, False])
def test_pages_that_the_engine_has_not_touched_are_refused(sealed: bool) -> None:  # noqa: FBT001
    fd = kv_file(sealed=sealed, touched=False)
    with pytest.raises(ShareError, match="charged to the agent"):
        SharedTensors(share(layer()), [fd], block_bytes=[BLOCK])


def test_what_is_no_writable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    path.write_bytes(bytes(SIZE))
    for fd, problem in (
        (os.open(path, os.O_RDONLY), "not open for reading and writing"),
        (os.open(tmp_path, os.O_RDONLY), "no regular or memory file"),
        (os.open("/dev/zero", os.O_RDWR), "no regular or memory file"),
    ):
        with pytest.raises(ShareError, match=problem):
            SharedTensors(share(layer()), [fd], block_bytes=[BLOCK])


@given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            name: st.integers(-(1 << 63), (1 << 63) - 1)
            for name in ("file", "offset", "num_blocks", "block_stride", "block_bytes")
        },
    )
)
def test_no_numbers_make_a_layer_reach_outside_its_file(fields: dict[str, int]) -> None:
    shared = share(layer(**fields))
    fd = kv_file(sealed=False)
    try:
        tensors = SharedTensors(shared, [fd], block_bytes=[layer(**fields).block_bytes])
    except ShareError:
        return
    found = tensors.memory[0][0]
    first = address(found) - FILE_BYTES
    assert first >= 0
    assert first + (found.num_blocks - 1) * found.block_stride + found.block_bytes <= SIZE
    tensors.close()
