"""Messages that no honest engine sends, drawn by a seeded generator."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import numpy as np
from tests.integration.agent.wire import BLOCK_BYTES, TOKENS_PER_BLOCK, hashes, registration

from kvoffload_api.wire.framing import HEADER, encode
from kvoffload_api.wire.messages import (
    Alloc,
    Append,
    Complete,
    Finish,
    FromEngine,
    Group,
    Handoff,
    Hello,
    Mapped,
    Match,
    NewRequest,
    Register,
    Reset,
    ScheduledBlocks,
    Step,
    Unmapped,
)
from kvoffload_api.wire.params import pack_params

NASTY = [
    0, 1, -1, 2, 3, 15, 16, 17, 64, 1000, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**62,
    2**63 - 1, -(2**63),
]  # fmt: skip


class Dice:
    """Draws messages; the same seed draws the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def number(self) -> int:
        """Return a number that is small, or at an edge."""
        roll = self.random
        return roll.choice(NASTY) if roll.random() < 0.03 else roll.randrange(6)

    def numbers(self, most: int = 5) -> list[int]:
        return [self.number() for _ in range(self.random.randrange(most))]

    def handle(self) -> int:
        return self.number() if self.random.random() < 0.03 else self.random.randrange(4)

    def tokens(self) -> int:
        roll = self.random
        return self.number() if roll.random() < 0.1 else roll.randrange(7) * TOKENS_PER_BLOCK

    def column(self, count: int, draw: Callable[[], int]) -> bytes:
        blob = np.array([draw() for _ in range(count)], dtype="<i8").tobytes()
        return blob[:-1] if self.random.random() < 0.05 else blob

    def table(self) -> list[bytes]:
        groups = 1 if self.random.random() < 0.9 else self.random.randrange(4)
        return [self.column(self.random.randrange(7), self.number) for _ in range(groups)]

    def blob(self) -> bytes:
        found = hashes(self.random.randrange(6), seed=self.random.choice([b"x", b"y"]))
        return found[:-1] if self.random.random() < 0.05 else found

    def register(self) -> Register:
        """Return a registration whose numbers may be anything."""
        roll = self.random
        good = registration(b"hostile")
        kinds = ["full", "sliding_window", "chunked_local", "mamba", "none", ""]
        groups = [
            Group(
                kind=roll.choice(kinds[:4]) if roll.random() < 0.9 else roll.choice(kinds),
                tokens_per_block=roll.choice([TOKENS_PER_BLOCK, self.number()]),
                block_bytes=roll.choice([BLOCK_BYTES, self.number()]),
                window=roll.choice([0, 64, self.number()]),
                eagle=roll.random() < 0.3,
                mamba_align=roll.random() < 0.3,
                extra_retained_tokens=roll.choice([0, self.number()]),
            )
            for _ in range(roll.randrange(4))
        ]
        return msgspec.structs.replace(
            good,
            world_size=roll.choice([1, 1, 2, self.number()]),
            tokens_per_hash=roll.choice([TOKENS_PER_BLOCK, self.number()]),
            blocks_per_chunk=roll.choice([1, 2, self.number()]),
            block_hash_bytes=roll.choice([32, 32, self.number()]),
            groups=groups,
            prefix_cache_retention_interval=roll.choice([None, None, self.number()]),
        )

    def step(self) -> Step:
        roll = self.random
        count = roll.randrange(4)
        return Step(
            seq=self.number(),
            handles=self.column(count, self.handle),
            computed=self.column(count, self.tokens),
            scheduled=self.column(count, self.tokens),
            blocks=[
                ScheduledBlocks(handle=self.handle(), blocks=self.table())
                for _ in range(roll.randrange(4))
            ],
            new=self.numbers(3),
            resumed=self.numbers(2),
            finished=self.numbers(3),
            preempted=self.numbers(3),
            handoffs=[
                Handoff(self.handle(), self.number(), self.number(), self.tokens())
                for _ in range(roll.randrange(3))
            ],
            copies=[(self.number(), self.number()) for _ in range(roll.randrange(3))],
            shared_prefix_boundaries={
                self.handle(): self.tokens() for _ in range(roll.randrange(2))
            },
        )

    def decision(self) -> FromEngine:
        """Return what a scheduler might say."""
        roll = self.random
        status = roll.choice(["stopped", "length", "aborted", "", "?"])
        draws: list[Callable[[], FromEngine]] = [
            lambda: NewRequest(
                handle=self.handle(),
                request_id="r",
                num_tokens=self.tokens(),
                num_prompt_tokens=self.tokens(),
                hashes=self.blob(),
                params=pack_params({"max_load_tokens": self.number()}),
            ),
            lambda: NewRequest(self.handle(), "r", 96, 96, hashes(6)),
            lambda: Append(self.handle(), self.tokens(), self.blob()),
            lambda: Match(self.number(), self.handle(), self.tokens(), roll.choice([None, 64])),
            lambda: Alloc(self.number(), self.handle(), self.tokens(), self.table()),
            self.step,
            self.step,
            lambda: Finish(self.handle(), status, self.tokens()),
            lambda: Reset(self.number()),
            lambda: Complete(self.numbers(), self.numbers()),
            lambda: Hello(1, "scheduler", "k", 0, "", ""),
            lambda: Mapped(self.numbers()),
        ]
        return roll.choice(draws)()

    def report(self) -> FromEngine:
        """Return what a worker might say."""
        draws: list[Callable[[], FromEngine]] = [
            lambda: Complete(self.numbers(), self.numbers()),
            lambda: Mapped(self.numbers()),
            lambda: Unmapped(self.numbers()),
        ]
        return self.random.choice(draws)()

    def frame(self, message: FromEngine, *, boot_id: int, damage: float) -> bytes:
        """Return its frame; ``damage``: share of the message's bytes that are changed."""
        frame = bytearray(encode(message, boot_id=boot_id))
        for at in range(HEADER.size, len(frame)):
            if self.random.random() < damage:
                frame[at] = self.random.randrange(256)
        return bytes(frame)
