"""Measures both schedulers in one process, in turns; prints one JSON object a line.

Runs in vLLM's environment: ``python -m tests.bench.scheduler_peers.rows [--socket PATH]``.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

from tests.bench.scheduler_peers.ours import Ours
from tests.bench.scheduler_peers.socket import Remote
from tests.bench.scheduler_peers.theirs import Theirs
from tests.bench.scheduler_peers.workload import Hashes, Shape, hashes

LONG = 8192  # chunks of 16 tokens in 128k tokens
SHORT = 64  # chunks in 1k tokens
WINDOW = 1024
PROMPTS = 16  # of LONG chunks: 2 MB of keys, so that no cache of the CPU holds a whole index
SMALL, LARGE = 100_000, 1_000_000
OFFER = 1024
FILL = 10_000
STORE = 1000
STORE_CAPACITY = 20_000
DECODING, DECODE_CHUNKS, SHORT_DECODE_CHUNKS = 256, 2048, 128

_fresh = count()
Peers = Sequence[Any]


def fresh(size: int) -> Hashes:
    """Return hashes that nobody has seen."""
    return hashes(f"fresh-{next(_fresh)}", size)


def in_turns(samples: Sequence[Iterator[float]], rounds: int) -> list[list[float]]:
    """Take ``rounds`` samples of each in turns, in milliseconds; the collector runs between."""
    taken: list[list[float]] = [[] for _ in samples]
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for sample, times in zip(samples, taken, strict=True):
                times.append(next(sample) * 1e3)
    finally:
        gc.enable()
    return taken


def timed(call: Callable[[Any], object], argument: object, *, expected: object) -> float:
    """Return the seconds of one call.

    Raises:
        AssertionError: it answered something else.
    """
    begun = time.perf_counter()
    answer = call(argument)
    seconds = time.perf_counter() - begun
    assert answer == expected, f"{call}: {answer} instead of {expected}"
    return seconds


def report(name: str, theirs: Sequence[float], ours: Sequence[float], goal: float) -> None:
    """Print a row of times. ``goal``: the largest ratio that is allowed."""
    row = {
        "name": name,
        "theirs": statistics.median(theirs),
        "ours": statistics.median(ours),
        "goal": goal,
    }
    print(json.dumps(row), flush=True)


def report_value(name: str, value: float, goal: float, unit: str) -> None:
    """Print a row of one figure of ours."""
    print(json.dumps({"name": name, "value": value, "goal": goal, "unit": unit}), flush=True)


# --- lookups -------------------------------------------------------------------------------------


def matches(peer: Any, keys: Callable[[], Hashes], expected: int) -> Iterator[float]:
    """Yield the time of one request's first lookup."""
    while True:
        prepared = peer.prepare_match(keys())
        yield timed(peer.match, prepared, expected=expected)
        peer.forget(prepared)


def prompt(number: int, size: int = LONG) -> Hashes:
    """Return the hashes of a resident prompt's first chunks."""
    return hashes(f"prompt-{number % PROMPTS}", size)


def prompts(size: int) -> Callable[[], Hashes]:
    """Return a function that gives a resident prompt after the other."""
    numbers = count()
    return lambda: prompt(next(numbers), size)


def with_holes() -> Hashes:
    """Return a prompt of which every tenth chunk, in no order, is missing."""
    keys = prompt(0)
    strange = hashes("strange", LONG)
    return [new if new[0] < 26 else key for key, new in zip(keys, strange, strict=True)]


def measure_matches(socket: str | None) -> None:
    """Rows of one full-attention group."""
    peers = make_peers(Shape())
    for number in range(PROMPTS):
        for peer in peers:
            peer.fill(0, prompt(number))
    with ExitStack() as stack:
        remote: list[Remote] = []
        if socket is not None:
            remote = [stack.enter_context(Remote(socket, prompt(0)))]
        for name, size, rounds, goal in (
            ("match, full, chunk 16, 128k tokens, all hit, first call", LONG, 41, 1 / 5),
            ("match, full, chunk 16, 1k tokens, all hit", SHORT, 401, 1 / 2),
        ):
            theirs, ours = in_turns(
                [matches(peer, prompts(size), size * 16) for peer in peers], rounds
            )
            report(name, theirs, ours, goal)
        if remote:
            theirs, ours = in_turns(
                [matches(peer, lambda: prompt(0), LONG * 16) for peer in (peers[0], *remote)], 41
            )
            report("same (128k tokens) through the socket", theirs, ours, 1 / 2)
    found = next(
        at for at, (a, b) in enumerate(zip(prompt(0), with_holes(), strict=True)) if a != b
    )
    for name, keys, expected in (
        ("same (128k tokens) with 10 % random holes", with_holes, found * 16),
        ("same (128k tokens) with a miss at the first key", lambda: fresh(LONG), 0),
    ):
        theirs, ours = in_turns([matches(peer, keys, expected) for peer in peers], 41)
        report(name, theirs, ours, 1.0)


def measure_windows() -> None:
    """Row of full attention and a window."""
    peers = make_peers(Shape(window=WINDOW), capacity=2 * PROMPTS * LONG)
    for number in range(PROMPTS):
        for peer in peers:
            for group in range(2):
                peer.fill(group, prompt(number))
    # With a window group the last token has to be computed.
    theirs, ours = in_turns([matches(peer, prompts(LONG), LONG * 16 - 1) for peer in peers], 41)
    report("match, full + window 1024, chunk 16, 128k, all hit", theirs, ours, 1 / 5)


# --- stores --------------------------------------------------------------------------------------


def stores(peer: Any) -> Iterator[float]:
    """Yield the time of a step that stores a whole prompt."""
    while True:
        prepared = peer.prepare_store(fresh(STORE))
        yield timed(peer.store, prepared, expected=STORE)
        peer.stored(prepared)


def offers(peer: Any) -> Iterator[float]:
    """Yield the time of an offer to host memory that evicts as many chunks."""
    while True:
        prepared = peer.prepare_offer(fresh(OFFER))
        yield timed(peer.offer, prepared, expected=OFFER)
        peer.offered(prepared)


def fill(peer: Any, size: int) -> None:
    """Fill host memory."""
    while size:
        peer.fill(0, fresh(min(size, FILL)))
        size -= min(size, FILL)


def measure_stores() -> None:
    """Row of a whole step."""
    peers = make_peers(Shape(), capacity=STORE_CAPACITY)
    for peer in peers:
        fill(peer, STORE_CAPACITY)
    theirs, ours = in_turns([stores(peer) for peer in peers], 41)
    report("store plan, 1,000 new chunks of 16, each evicting", theirs, ours, 1 / 3)


def measure_offers(policy: str, goal: float) -> None:
    """Rows of offers at 100k and at 1M resident chunks, and what both pools cost the collector."""
    means = {}
    for size in (SMALL, LARGE):
        peers = make_peers(Shape(policy=policy), capacity=size)
        for peer in peers:
            fill(peer, size)
        theirs, ours = in_turns([offers(peer) for peer in peers], 41)
        means[size] = statistics.fmean(ours)
        if size == LARGE:
            name = f"store offer of 1,024 keys with eviction at 1M resident, {policy.upper()}"
            report(name, theirs, ours, goal)
            report(
                # A median hides what is paid once in ten offers.
                f"same, mean instead of median, {policy.upper()}",
                [statistics.fmean(theirs)],
                [means[size]],
                1.0,
            )
            # Linear in resident chunks would be 10; caches of the CPU explain some of what it is.
            report_value(
                f"mean offer at 1M / at 100k, {policy.upper()}", means[LARGE] / means[SMALL], 3, "x"
            )
            if policy == "lru":
                measure_collector(peers)


def measure_collector(peers: list[Any]) -> None:
    """Row of a full collection: by how much each pool, being there, makes it longer."""
    with_both = collection()
    theirs = peers.pop(0)
    del theirs
    gc.collect()
    with_ours = collection()
    peers.clear()
    gc.collect()
    without = collection()
    row = {
        "name": "gc.collect() with 1M resident chunks, above an empty process",
        "theirs": with_both - with_ours,
        "value": max(with_ours - without, 0.0),
        "goal": 1.0,
        "unit": "ms",
    }
    print(json.dumps(row), flush=True)


def collection() -> float:
    """Return the milliseconds of a full collection, the shortest: differences are below noise."""
    times = []
    for _ in range(25):
        begun = time.perf_counter()
        gc.collect()
        times.append((time.perf_counter() - begun) * 1e3)
    return min(times)


def measure_bytes() -> None:
    """Row of memory: what Python and numpy hold for a full index."""
    gc.collect()
    tracemalloc.start()
    ours = Ours(Shape(), capacity=LARGE)
    fill(ours, LARGE)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    report_value("index bytes per resident chunk at 1M", held / LARGE, 160, "B")


# --- decoding ------------------------------------------------------------------------------------


def decodes(peer: Any, step: Any) -> Iterator[float]:
    """Yield the time of a step that stores nothing."""
    while True:
        yield timed(peer.decode, step, expected=0)


def measure_decode() -> None:
    """Rows of a step of running requests, and whether long prompts make it longer."""
    peers = make_peers(Shape(), capacity=DECODING * DECODE_CHUNKS)
    theirs, ours = in_turns([decodes(peer, running(peer, DECODE_CHUNKS)) for peer in peers], 101)
    report("decode step that stores nothing, 256 requests of 32k", theirs, ours, 1 / 10)
    peers = [Ours(Shape(), capacity=DECODING * DECODE_CHUNKS) for _ in range(2)]
    sizes = (DECODE_CHUNKS, SHORT_DECODE_CHUNKS)
    samples = [decodes(peer, running(peer, size)) for peer, size in zip(peers, sizes, strict=True)]
    long, short = in_turns(samples, 401)
    growth = statistics.median(long) / statistics.median(short)
    report_value("same step, prompts of 32k / of 2k tokens", growth, 1.5, "x")


def running(peer: Any, chunks: int) -> Any:
    """Return a step of running requests whose prompts have ``chunks`` chunks."""
    return peer.prepare_decode([fresh(chunks) for _ in range(DECODING)])


def make_peers(shape: Shape, capacity: int = PROMPTS * LONG) -> list[Any]:
    """Return vLLM's and ours."""
    return [Theirs(shape, capacity=capacity), Ours(shape, capacity=capacity)]


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", help="of a running agent")
    parser.add_argument("--only", help="one of matches, windows, stores, lru, arc, decode, bytes")
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "matches": lambda: measure_matches(arguments.socket),
        "windows": measure_windows,
        "stores": measure_stores,
        "lru": lambda: measure_offers("lru", 1 / 5),
        "arc": lambda: measure_offers("arc", 1 / 2),
        "decode": measure_decode,
        "bytes": measure_bytes,
    }
    for name, measure in parts.items():
        if arguments.only in (None, name):
            measure()


if __name__ == "__main__":
    main()
