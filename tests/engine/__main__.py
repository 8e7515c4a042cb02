"""Run the reference engine as a process; exit code 1 if any byte was wrong."""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import random
import secrets
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

from tests.engine.content import make_kv_file
from tests.engine.engine import Engine, EngineOptions
from tests.engine.probe import CopyProbe
from tests.engine.stats import StatsFile
from tests.engine.trace import TraceRequest, read_trace

from kvoffload_client import ClientSettings

DEFAULT_TRACE = Path(__file__).parent.parent / "data/traces/mooncake_conversation_2000.jsonl"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine", description=__doc__)
    add = parser.add_argument
    add("--socket", required=True, help="the agent's Unix socket")
    add("--name", default="engine", help="how the engine calls itself in its statistics")
    add("--trace", type=Path, default=DEFAULT_TRACE, help="Mooncake trace, JSON lines")
    add("--requests", type=int, default=200, help="use the first so many requests of the trace")
    add("--scale", type=int, default=8, help="divide all lengths by this (1, 2, 4, ... 32)")
    add("--repeat", action="store_true", help="serve them for ever, shuffled, until SIGTERM")
    add("--shard", default="0/1", help="i/n: of these, serve every n-th request, from the i-th")
    add("--stats-file", type=Path, help="append statistics as a JSON line each 0.25 s")
    add("--copies-file", type=Path, help="count begun and ended copies here, see probe.py")
    add("--blocks", type=int, default=1024, help="blocks of device memory")
    add("--layers", type=int, default=4)
    add("--layer-kib", type=int, default=32, help="KiB of one layer's block")
    add("--blocks-per-chunk", type=int, default=1)
    add("--concurrency", type=int, default=16, help="requests at a time")
    add("--tokens-per-step", type=int, default=2048)
    add("--step-ms", type=float, default=0.0, help="a step with work takes at least so long")
    add("--params", type=json.loads, default=None, help="kv_transfer_params of every request, JSON")
    add("--token-file", "--namespace-token", default="", help="the ServiceAccount token's file")
    add("--seed", type=int, default=0, help="engines of different seeds share nothing")
    add("--abort-every", type=int, default=0, help="abort every n-th request while it decodes")
    add("--hook-deadline-ms", type=float, default=5.0)
    add("--connect-seconds", type=float, default=10.0, help="how long to wait for the agent")
    add("--need-agent", action="store_true", help="exit with 2 if the agent is not there by then")
    add("--poison", action="store_true", help="flip one stored bit before the first load")
    add(
        "--agent-copies",
        choices=["sealed", "shm"],
        help="have KV memory in a sealed memory file, or in /dev/shm as torch has it",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Serve the trace and return the exit code."""
    args = parse(arguments)
    logging.basicConfig(level=logging.WARNING, format=f"{args.name}: %(message)s")
    signal.signal(signal.SIGTERM, _interrupt)
    settings = ClientSettings(
        session_key=secrets.token_hex(16),
        socket_path=args.socket,
        token_path=args.token_file,
        hook_deadline_seconds=args.hook_deadline_ms / 1000,
    )
    options = EngineOptions(
        num_blocks=args.blocks,
        num_layers=args.layers,
        layer_bytes=args.layer_kib * 1024,
        blocks_per_chunk=args.blocks_per_chunk,
        tokens_per_step=args.tokens_per_step,
        step_seconds=args.step_ms / 1000,
        concurrency=args.concurrency,
        seed=args.seed,
        params=args.params,
        abort_every=args.abort_every,
        poison=args.poison,
    )
    if args.agent_copies:
        file = make_kv_file(options.device_bytes, sealed=args.agent_copies == "sealed")
        options = replace(options, kv_file=file)
    engine = Engine(settings=settings, options=options)
    if args.copies_file is not None:
        CopyProbe(args.copies_file).watch(engine.runner.worker)
    shard, shards = (int(part) for part in args.shard.split("/"))
    trace = read_trace(
        args.trace,
        limit=args.requests,
        scale=args.scale,
        shard=shard,
        shards=shards,
        max_tokens=engine.max_request_tokens,
    )
    report = StatsFile(args.stats_file, name=args.name)
    try:
        if not engine.start(timeout_seconds=args.connect_seconds) and args.need_agent:
            print(f"{args.name}: no agent at {args.socket}", file=sys.stderr)
            return 2
        engine.run(repeated(trace, seed=args.seed) if args.repeat else trace, report)
    except KeyboardInterrupt:
        return 130
    finally:
        report.write(engine.stats, last=True)
        engine.close()
    print(json.dumps({"engine": args.name} | engine.stats.as_dict()))
    return 1 if engine.stats.mismatches else 0


def repeated(trace: Iterable[TraceRequest], *, seed: int) -> Iterator[TraceRequest]:
    """Yield the requests for ever, in each turn in another order and under names of their own."""
    requests = list(trace)
    dice = random.Random(seed)
    for turn in itertools.count():
        dice.shuffle(requests)
        for request in requests:
            yield replace(request, request_id=f"{request.request_id}/{turn}")


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
