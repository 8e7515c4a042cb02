"""A worker moves exactly the bytes of a plan between its blocks and the agent's segments."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.client.fake_agent import FakeAgent, eventually, map_message, sealed_segment

from kvoffload_api.wire.messages import Complete, Hello, Mapped, Plan, Unmap, Unmapped
from kvoffload_client import ClientSettings, Job, JobKey, KVLayer, WorkerSession
from kvoffload_client.jobs import JobResult, Kind

NUM_BLOCKS = 16
LAYER_BYTES = (1000, 3096)
BLOCK_BYTES = sum(LAYER_BYTES)
SEGMENT_BYTES = 8 * BLOCK_BYTES
WAIT = 10.0


class Bench:
    """A worker with two layers, and two mapped segments, 40 and 41."""

    def __init__(self, agent: FakeAgent, settings: ClientSettings) -> None:
        rng = np.random.default_rng(1)
        self.agent = agent
        self.layers = [
            rng.integers(0, 256, (NUM_BLOCKS, size), dtype=np.uint8) for size in LAYER_BYTES
        ]
        self.worker = WorkerSession(settings=settings, rank=0, memory=[self.memory()])
        self.worker.start()
        self.fds = [sealed_segment(SEGMENT_BYTES) for _ in range(2)]
        self.arena = [
            np.frombuffer(mmap.mmap(fd, SEGMENT_BYTES), dtype=np.uint8) for fd in self.fds
        ]
        self.peer = agent.peer("worker")
        self.peer.send(map_message([40, 41], SEGMENT_BYTES), self.fds)
        assert agent.expect(Mapped).segments == [40, 41]
        self.key = JobKey(agent.boot_id, agent.session, 0)

    def memory(self) -> list[KVLayer]:
        return [
            KVLayer(
                memory=layer, num_blocks=NUM_BLOCKS, block_stride=layer.shape[1], block_bytes=size
            )
            for layer, size in zip(self.layers, LAYER_BYTES, strict=True)
        ]

    def block(self, block: int) -> bytes:
        return b"".join(layer[block].tobytes() for layer in self.layers)

    def run(
        self,
        kind: Kind,
        entries: list[tuple[int, int, int]],
        *,
        number: int = 1,
        lengths: list[int] | None = None,
        sizes: list[int] | None = None,
        key: JobKey | None = None,
    ) -> JobResult:
        blocks, segments, offsets = zip(*entries, strict=True) if entries else ((), (), ())
        plan = Plan(
            number,
            1,
            np.array(blocks, dtype="<i8").tobytes(),
            np.array(segments, dtype="<u8").tobytes(),
            np.array(offsets, dtype="<u8").tobytes(),
            [len(entries)] if sizes is None else sizes,
            [BLOCK_BYTES] if lengths is None else lengths,
        )
        return self.run_plan(kind, plan, key=key)

    def run_plan(self, kind: Kind, plan: Plan, *, key: JobKey | None = None) -> JobResult:
        key = key or JobKey(self.agent.boot_id, self.agent.session, plan.job)
        job = Job(key, kind, plan)
        (self.worker.submit_load if kind == "load" else self.worker.submit_store)(job)
        assert self.worker.wait([key], timeout_seconds=WAIT) == frozenset()
        (result,) = self.worker.poll()
        assert result.key == key
        return result

    def close(self) -> None:
        self.worker.close()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture(params=["kernel", "numpy"])
def bench(
    request: pytest.FixtureRequest,
    agent: FakeAgent,
    settings: ClientSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    monkeypatch.setenv("KVOFFLOAD_COPY", request.param)
    made = Bench(agent, settings)
    assert made.worker.copy_name == request.param
    yield made
    made.close()


def test_stored_bytes_come_back_in_other_blocks(bench: Bench) -> None:
    entries = [(3, 40, BLOCK_BYTES), (7, 41, 0), (8, 40, 5 * BLOCK_BYTES)]
    stored = [bench.block(block) for block, _, _ in entries]
    assert bench.run("store", entries).ok
    assert bench.arena[0][BLOCK_BYTES : 2 * BLOCK_BYTES].tobytes() == stored[0]
    assert bench.arena[1][:BLOCK_BYTES].tobytes() == stored[1]
    before = [bench.block(block) for block in range(NUM_BLOCKS)]
    result = bench.run("load", [(10, 40, BLOCK_BYTES), (11, 41, 0)], number=2)
    assert (result.ok, result.nbytes) == (True, 2 * BLOCK_BYTES)
    assert [bench.block(10), bench.block(11)] == stored[:2]
    untouched = [b for b in range(NUM_BLOCKS) if b not in (10, 11)]
    assert [bench.block(b) for b in untouched] == [before[b] for b in untouched]
    assert bench.agent.expect(Complete, count=2).done == [2]


BAD: dict[str, dict[str, Any]] = {
    "block past the end": {"entries": [(NUM_BLOCKS, 40, 0)]},
    "null block": {"entries": [(0, 40, 0)]},
    "negative block": {"entries": [(-1, 40, 0)]},
    "segment that is not mapped": {"entries": [(1, 42, 0)]},
    "segment number that wraps": {"entries": [(1, 2**64 - 1, 0)]},
    "bytes past the segment's end": {"entries": [(1, 40, SEGMENT_BYTES - BLOCK_BYTES + 1)]},
    "offset that wraps": {"entries": [(1, 40, 2**64 - BLOCK_BYTES)]},
    "length of another layout": {"entries": [(1, 40, 0)], "lengths": [BLOCK_BYTES - 1]},
    "more entries than columns": {"entries": [(1, 40, 0)], "sizes": [2]},
    "negative group size": {"entries": [(1, 40, 0)], "sizes": [-1]},
    "group that does not exist": {
        "entries": [(1, 40, 0)],
        "sizes": [1, 0],
        "lengths": [BLOCK_BYTES, 1],
    },
}


@pytest.mark.parametrize("kind", ["load", "store"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_bad_plan_fails_and_moves_nothing(bench: Bench, kind: Kind, bad: dict[str, Any]) -> None:
    blocks = [bench.block(block) for block in range(NUM_BLOCKS)]
    arena = [segment.tobytes() for segment in bench.arena]
    result = bench.run(kind, **bad)
    assert not result.ok
    assert result.reason.startswith("bad plan")
    assert [bench.block(block) for block in range(NUM_BLOCKS)] == blocks
    assert [segment.tobytes() for segment in bench.arena] == arena
    assert bench.agent.expect(Complete).failed == [1]


def test_columns_of_different_lengths_fail(bench: Bench) -> None:
    eight = bytes(8)
    assert not bench.run_plan("load", Plan(1, 1, eight * 2, eight, eight, [2], [BLOCK_BYTES])).ok
    assert not bench.run_plan("load", Plan(2, 1, b"odd", eight, eight, [1], [BLOCK_BYTES])).ok


def test_an_empty_plan_succeeds(bench: Bench) -> None:
    assert bench.run("load", []).ok


@pytest.mark.parametrize("other", [(0, 1), (1, 0)], ids=["boot", "session"])
def test_a_plan_of_another_boot_or_session_never_runs(bench: Bench, other: tuple[int, int]) -> None:
    boot, session = other
    key = JobKey(bench.agent.boot_id + boot, bench.agent.session + session, 1)
    result = bench.run("store", [(3, 40, 0)], key=key)
    assert not result.ok
    assert not bench.arena[0].any()
    assert bench.agent.count(Complete) == 0


def test_a_segment_that_was_asked_back_is_used_no_more(bench: Bench) -> None:
    bench.peer.send(Unmap([40]))
    assert bench.agent.expect(Unmapped).segments == [40]
    assert len(bench.worker.mapped_ranges()) == 1
    assert not bench.run("store", [(3, 40, 0)]).ok
    assert bench.run("store", [(3, 41, 0)], number=2).ok


def test_everything_is_unmapped_when_the_agent_is_gone(bench: Bench) -> None:
    inodes = {os.fstat(fd).st_ino for fd in bench.fds}

    def mapped() -> int:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum("memfd:segment" in line and int(line.split()[4]) in inodes for line in lines)

    own = len(bench.arena)
    assert mapped() == 2 * own
    bench.agent.die()
    eventually(lambda: mapped() == own)


def test_a_segment_that_could_shrink_is_refused(agent: FakeAgent, settings: ClientSettings) -> None:
    layer = np.zeros((4, 64), dtype=np.uint8)
    memory = [[KVLayer(memory=layer, num_blocks=4, block_stride=64, block_bytes=64)]]
    worker = WorkerSession(settings=settings, rank=0, memory=memory)
    worker.start()
    peer = agent.peer("worker")
    fd = sealed_segment(4096, seal=False)
    peer.send(map_message([1], 4096), [fd])
    os.close(fd)
    eventually(lambda: agent.count(Hello) > 1)
    worker.close()
    assert agent.count(Mapped) == 0
    assert worker.mapped_ranges() == []
