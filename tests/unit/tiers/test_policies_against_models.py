"""What leaves, and when an offer is refused, equals plain models over long random use."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.tiers.models import ArcModel, Asker, Key, LruModel, Run

from kvoffload_agent.tiers.host import HostConfig, HostTier
from kvoffload_agent.tiers.policy.arc import AdaptiveReplacement, key_of
from kvoffload_agent.tiers.policy.base import KeyRun, Scratch
from kvoffload_agent.tiers.slots import Slots

STEPS = 100
KEYS = 14
OFTEN = ["offer"] * 5 + ["written"] * 4
ACTS = [*OFTEN, "failed", "pin", "pin", "unpin", "unpin", "finish", "grow", "reset"]


class Pair:
    """Host memory and a model of it. ``pins``: how often each key is read."""

    def __init__(self, random: Random, policy: str) -> None:
        self.random = random
        self.host = HostTier(HostConfig(eviction_policy=policy))  # type: ignore[arg-type]
        self.new_model = ArcModel if policy == "arc" else LruModel
        self.model: LruModel | ArcModel = self.new_model()
        self.capacity = 0
        self.writing: list[list[Key]] = []
        self.ready: set[Key] = set()
        self.pins: list[Key] = []
        self.askers = [(Scratch(), Asker()) for _ in range(3)]
        self.known = random.choice([True, True, False])
        self.grow(random.randint(0, 9))

    def grow(self, count: int) -> None:
        self.host.add_slots(count)
        self.capacity += count

    def find(self, keys: list[Key]) -> Slots:
        return np.array([self.host.index.find(g, [key])[0] for g, key in keys], dtype=np.int64)

    def runs(self) -> list[Run]:
        """One run of consecutive chunks for each of some groups."""
        groups = self.random.choice([(0,), (0,), (1,), (0, 1)])
        runs: list[Run] = []
        for group in groups:
            first, size = self.random.randrange(KEYS), self.random.randint(1, 4)
            known = self.known or self.random.random() < 0.5
            numbers = range(first, min(first + size, KEYS))
            runs.append((group, [(_key(at), at + 1 if known else None) for at in numbers]))
        return runs

    def offer(self) -> None:
        scratch, asker = self.random.choice(self.askers)
        runs = self.runs()
        pending = {key for keys in self.writing for key in keys}
        keys = [((group, key), at) for group, items in runs for key, at in items]
        new = [(key, at) for key, at in keys if key not in self.ready and key not in pending]
        for group, items in runs[::-1]:
            seen = [((group, key), at) for key, at in items if (group, key) not in pending]
            present = [entry for entry in seen if entry[0] in self.ready]
            absent = [entry for entry in seen if entry[0] not in self.ready]
            self._observe(asker, seen, present, absent)
        free = self.capacity - len(self.ready) - len(pending)
        evictable = self.ready - set(self.pins) - {key for key, _ in keys}
        grant = self.host.offer(
            scratch, [_columns(run) for run in runs], blocked=np.empty(0, dtype=np.int64)
        )
        lacking = max(len(new) - free, 0)
        assert (grant is None) == (lacking > len(evictable))
        if grant is None:
            return
        victims = self.model.victims(lacking, evictable)
        assert list(grant.evicted) == victims
        self.model.evict(victims, capacity=self.capacity)
        self.ready -= set(victims)
        for key, at in new:
            self.model.insert(asker, key, at)
        if new:
            self.writing.append([key for key, _ in new])

    def _observe(
        self,
        asker: Asker,
        seen: list[tuple[Key, int | None]],
        present: list[tuple[Key, int | None]],
        absent: list[tuple[Key, int | None]],
    ) -> None:
        """Keys count as observed from the first on; ghosts are hit from the last one on."""
        if isinstance(self.model, ArcModel):
            for key, at in seen:
                asker.observed.setdefault(key, at)
            seen = [*present, *absent[::-1]]
        for key, at in seen:
            self.model.observe(asker, key, at, capacity=self.capacity)

    def written(self) -> None:
        if self.writing:
            keys = self.writing.pop(self.random.randrange(len(self.writing)))
            self.host.written(self.find(keys))
            self.ready |= set(keys)

    def failed(self) -> None:
        if self.writing:
            keys = self.writing.pop(self.random.randrange(len(self.writing)))
            self.host.failed(self.find(keys))
            for key in keys:
                self.model.drop(key)

    def pin(self) -> None:
        scratch, asker = self.random.choice(self.askers)
        group, items = self.runs()[0]
        items = [(key, at) for key, at in items if (group, key) in self.ready]
        if items:
            keys = [(group, key) for key, _ in items]
            slots = self.find(keys)
            self.host.observe(scratch, _columns((group, items)), slots)
            self.host.pin(slots)
            for key, at in items:
                self.model.observe(asker, (group, key), at, capacity=self.capacity)
            self.pins += keys

    def unpin(self) -> None:
        if self.pins:
            self.host.unpin(self.find([self.pins.pop(self.random.randrange(len(self.pins)))]))

    def finish(self) -> None:
        at = self.random.randrange(len(self.askers))
        scratch, asker = self.askers[at]
        self.host.policy.finish(scratch)
        self.model.finish(asker)
        self.askers[at] = (Scratch(), Asker())

    def reset(self) -> None:
        """Forget everything, of requests that go on too, once no copy runs."""
        if self.writing or self.pins:
            return
        self.host.reset(held=np.empty(0, dtype=np.int64))
        self.model = self.new_model()
        self.ready = set()
        self.askers = [(scratch, Asker()) for scratch, _ in self.askers]

    def act(self) -> None:
        match self.random.choice(ACTS):
            case "offer":
                self.offer()
            case "written":
                self.written()
            case "failed":
                self.failed()
            case "pin":
                self.pin()
            case "unpin":
                self.unpin()
            case "finish":
                self.finish()
            case "reset":
                self.reset()
            case _:
                self.grow(self.random.choice([0, 0, 1]))

    def check(self) -> None:
        policy, model = self.host.policy, self.model
        if isinstance(policy, AdaptiveReplacement) and isinstance(model, ArcModel):
            assert self.host.keys(policy.recent) == list(model.recent)
            assert self.host.keys(policy.frequent) == list(model.frequent)
            assert [key_of(ghost) for ghost in policy.recent_ghosts] == list(model.recent_ghosts)
            assert [key_of(g) for g in policy.frequent_ghosts] == list(model.frequent_ghosts)
            assert policy.target == model.target


def _key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def _columns(run: Run) -> KeyRun:
    group, items = run
    ends = [at for _, at in items if at is not None]
    positions = np.array(ends, dtype=np.int64) if len(ends) == len(items) else None
    return KeyRun(group=group, hashes=[key for key, _ in items], positions=positions)


@pytest.mark.parametrize("policy", ["lru", "arc"])
@given(seed=st.integers(0, 1 << 32))
def test_what_leaves_is_what_a_plain_model_says(policy: str, seed: int) -> None:
    pair = Pair(Random(seed), policy)
    for _ in range(STEPS):
        pair.act()
        pair.check()
