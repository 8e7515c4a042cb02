"""The index equals a dict over long random use, with hashes that collide in every way."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvoffload_agent.tiers.index import Index
from kvoffload_agent.tiers.slots import SlotTable

STEPS = 60
GROUPS = 3


@given(seed=st.integers(0, 1 << 32), size=st.sampled_from([1, 4, 8, 12, 16, 32]))
def test_the_index_finds_what_a_dict_finds(seed: int, size: int) -> None:
    random = Random(seed)
    table = SlotTable()
    table.extend(8)
    index = Index(table)
    expected: dict[tuple[int, bytes], int] = {}
    # Of few first bytes: many keys share a row, and its fingerprint.
    heads = [random.randbytes(min(size, 8)) for _ in range(random.choice([1, 3, 40]))]
    universe = sorted({(random.choice(heads) + random.randbytes(32))[:size] for _ in range(120)})
    for _ in range(STEPS):
        group = random.randrange(GROUPS)
        some = random.sample(universe, random.randint(1, len(universe)))
        match random.choice(["insert", "insert", "remove", "find", "extend", "clear"]):
            case "insert":
                new = [key for key in some if (group, key) not in expected][: table.num_free]
                if new:
                    slots = table.take(len(new))
                    table.fill(slots, group=group, hashes=new)
                    index.insert(slots)
                    expected |= {
                        (group, key): slot for key, slot in zip(new, slots.tolist(), strict=True)
                    }
            case "remove":
                gone = [entry for entry in expected if random.random() < 0.4]
                if gone:
                    slots = np.array([expected.pop(entry) for entry in gone], dtype=np.int64)
                    index.remove(slots)
                    table.give_back(slots)
            case "extend":
                table.extend(random.randint(1, 60))
            case "clear":
                if random.random() < 0.1:
                    index.clear()
                    table.clear(np.empty(0, dtype=np.int64))
                    expected = {}
            case _:
                odd = [key + b"?" for key in some]
                assert index.find(group, odd).tolist() == [-1] * len(odd)
        for number in range(GROUPS):
            found = index.find(number, some).tolist()
            assert found == [expected.get((number, key), -1) for key in some]
