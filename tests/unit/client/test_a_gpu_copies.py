"""A worker with a GPU moves the same bytes, after the engine's own work, and survives the GPU."""

from __future__ import annotations

import logging
import mmap
import os
import time
from collections.abc import Iterator

import numpy as np
import pytest
from tests.unit.client.fake_agent import FakeAgent, eventually, map_message, sealed_segment
from tests.unit.client.fake_gpu import FakeGpu

from kvoffload_api.wire.messages import Mapped, Plan, Unmap, Unmapped
from kvoffload_client import ClientSettings, Job, JobKey, KVLayer, WorkerSession
from kvoffload_client.jobs import JobResult, Kind

NUM_BLOCKS = 40
LAYER_BYTES = (1024, 4096)
BLOCK_BYTES = sum(LAYER_BYTES)
SEGMENT_BYTES = 40 * BLOCK_BYTES
WAIT = 10.0


class Bench:
    """A worker of a fake GPU with two layers, and one mapped segment, 40."""

    def __init__(self, agent: FakeAgent, settings: ClientSettings, gpu: FakeGpu) -> None:
        rng = np.random.default_rng(1)
        self.agent, self.gpu = agent, gpu
        self.layers = [
            rng.integers(0, 256, (NUM_BLOCKS, size), dtype=np.uint8) for size in LAYER_BYTES
        ]
        memory = [
            KVLayer(memory=layer, num_blocks=NUM_BLOCKS, block_stride=size, block_bytes=size)
            for layer, size in zip(self.layers, LAYER_BYTES, strict=True)
        ]
        self.worker = WorkerSession(settings=settings, rank=0, memory=[memory], device=gpu)
        self.worker.start()
        self.fd = sealed_segment(SEGMENT_BYTES)
        self.arena = np.frombuffer(mmap.mmap(self.fd, SEGMENT_BYTES), dtype=np.uint8)
        self.peer = agent.peer("worker")
        self.peer.send(map_message([40], SEGMENT_BYTES), [self.fd])
        assert agent.expect(Mapped).segments == [40]

    def submit(self, kind: Kind, blocks: list[int], *, number: int = 1) -> JobKey:
        """Copy blocks from or to consecutive places."""
        key = JobKey(self.agent.boot_id, self.agent.session, number)
        plan = Plan(
            number,
            1,
            np.array(blocks, dtype="<i8").tobytes(),
            np.full(len(blocks), 40, dtype="<u8").tobytes(),
            (np.arange(len(blocks), dtype="<u8") * BLOCK_BYTES).tobytes(),
            [len(blocks)],
            [BLOCK_BYTES],
        )
        job = Job(key, kind, plan)
        (self.worker.submit_load if kind == "load" else self.worker.submit_store)(job)
        return key

    def run(self, kind: Kind, blocks: list[int], *, number: int = 1) -> JobResult:
        key = self.submit(kind, blocks, number=number)
        assert self.worker.wait([key], timeout_seconds=WAIT) == frozenset()
        (result,) = self.worker.poll()
        return result

    def block(self, block: int) -> bytes:
        return b"".join(layer[block].tobytes() for layer in self.layers)

    def stored(self, place: int) -> bytes:
        return self.arena[place * BLOCK_BYTES : (place + 1) * BLOCK_BYTES].tobytes()


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu()


@pytest.fixture
def bench(agent: FakeAgent, settings: ClientSettings, gpu: FakeGpu) -> Iterator[Bench]:
    made = Bench(agent, settings, gpu)
    yield made
    gpu.engine.set()
    gpu.hold.set()
    made.worker.close()
    assert gpu.registered == {}
    assert gpu.open_marks == set()
    os.close(made.fd)


def test_stored_bytes_come_back_in_other_blocks(bench: Bench) -> None:
    blocks = list(range(1, 38, 2))
    before = [bench.block(block) for block in blocks]
    assert bench.run("store", blocks).ok
    assert [bench.stored(place) for place in range(len(blocks))] == before
    result = bench.run("load", [block + 1 for block in blocks], number=2)
    assert (result.ok, result.nbytes) == (True, len(blocks) * BLOCK_BYTES)
    assert [bench.block(block + 1) for block in blocks] == before
    assert [bench.block(block) for block in blocks] == before
    assert bench.gpu.copied == [("batch", 2 * len(blocks)), ("kernel", 2 * len(blocks))]


def test_a_copy_begins_after_what_the_engine_had_queued(bench: Bench) -> None:
    bench.gpu.engine.clear()
    key = bench.submit("store", [3])
    bench.layers[0][3] ^= 0xFF  # the engine's own work goes on
    assert bench.worker.wait([], timeout_seconds=0.02) == frozenset()
    assert bench.gpu.copied == []
    bench.gpu.engine.set()
    assert bench.worker.wait([key], timeout_seconds=WAIT) == frozenset()
    assert bench.stored(0) == bench.block(3)


def test_a_job_that_is_stopped_before_it_may_begin_copies_nothing(bench: Bench) -> None:
    bench.gpu.engine.clear()
    key = bench.submit("load", [3])
    assert bench.worker.wait([key], timeout_seconds=0.01) == {key}
    assert bench.gpu.copied == []


def test_a_job_ends_when_the_gpu_has_ended_it(bench: Bench) -> None:
    bench.gpu.hold.clear()
    key = bench.submit("store", [3])
    eventually(lambda: bench.gpu.copied)
    time.sleep(0.02)
    assert bench.worker.poll() == []
    bench.gpu.hold.set()
    assert bench.worker.wait([key], timeout_seconds=WAIT) == frozenset()
    assert bench.stored(0) == bench.block(3)


def test_what_the_gpu_refuses_fails_and_the_next_job_is_tried_again(bench: Bench) -> None:
    bench.gpu.refuse_copies = True
    result = bench.run("load", [1, 2])
    assert (result.ok, result.reason) == (False, "the GPU failed: batch: CUDA_ERROR_INVALID_VALUE")
    bench.gpu.refuse_copies = False
    assert bench.run("load", [1, 2], number=2).ok


def test_a_gpu_that_dies_fails_jobs_and_nothing_else(bench: Bench) -> None:
    bench.gpu.hold.clear()
    key = bench.submit("load", [1, 2])
    eventually(lambda: bench.gpu.copied)
    bench.gpu.broken = True
    assert bench.worker.wait([key], timeout_seconds=WAIT) == frozenset()
    assert [result.reason for result in bench.worker.poll()] == [
        "the GPU failed: cuEventQuery: CUDA_ERROR_LAUNCH_FAILED"
    ]
    assert not bench.run("store", [1], number=2).ok


def test_a_segment_is_unregistered_before_it_is_given_back(bench: Bench) -> None:
    assert list(bench.gpu.registered.values()) == [SEGMENT_BYTES]
    bench.peer.send(Unmap(segments=[40]))
    assert bench.agent.expect(Unmapped).segments == [40]
    assert bench.gpu.registered == {}


def test_a_segment_in_use_stays_registered_until_its_copy_ends(bench: Bench) -> None:
    bench.gpu.hold.clear()
    bench.submit("store", [3])
    eventually(lambda: bench.gpu.copied)
    bench.peer.send(Unmap(segments=[40]))
    time.sleep(0.02)
    assert list(bench.gpu.registered.values()) == [SEGMENT_BYTES]
    bench.gpu.hold.set()
    assert bench.agent.expect(Unmapped).segments == [40]
    assert bench.gpu.registered == {}


def test_memory_that_cannot_be_registered_is_copied_all_the_same(
    agent: FakeAgent, settings: ClientSettings, gpu: FakeGpu, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.refuse_registration = True
    with caplog.at_level(logging.WARNING, logger="kvoffload_client"):
        bench = Bench(agent, settings, gpu)
    try:
        assert bench.run("store", [5, 7]).ok
        assert [bench.stored(0), bench.stored(1)] == [bench.block(5), bench.block(7)]
        assert {method for method, _ in gpu.copied} == {"single"}
        (line,) = [r.getMessage() for r in caplog.records if "registered with the GPU" in r.message]
        assert "CUDA_ERROR_OUT_OF_MEMORY" in line
    finally:
        bench.worker.close()
        os.close(bench.fd)


def test_an_agent_that_goes_away_waits_for_the_gpu(bench: Bench) -> None:
    bench.gpu.hold.clear()
    bench.submit("load", [3])
    eventually(lambda: bench.gpu.copied)
    bench.agent.silent = True
    bench.peer.close()
    time.sleep(0.05)
    assert list(bench.gpu.registered.values()) == [SEGMENT_BYTES]
    bench.gpu.hold.set()
    eventually(lambda: not bench.gpu.registered)
    (result,) = bench.worker.poll()
    assert (result.ok, result.reason) == (False, "the agent is gone")
