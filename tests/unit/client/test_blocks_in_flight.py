"""No block is written while a copy that the table knows touches it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvoffload_api.wire.messages import Plan
from kvoffload_client import Job, JobKey
from kvoffload_client.inflight import BlocksInFlight
from kvoffload_client.outcomes import ScheduledRequest, StepInput
from kvoffload_client.steps import Rewritten

BLOCKS = st.lists(st.integers(1, 12), max_size=5)


def job(number: int, handle: int, blocks: list[int]) -> Job:
    column = np.array(blocks, dtype="<i8").tobytes()
    return Job(
        JobKey(1, 1, number),
        "store",
        Plan(number, handle, column, column, column, [len(blocks)], [1]),
    )


class TableAgainstModel(RuleBasedStateMachine):
    """The table answers as a list of (key, handle, blocks) that is searched would."""

    def __init__(self) -> None:
        super().__init__()
        self.table = BlocksInFlight()
        self.model: dict[JobKey, tuple[int, set[int]]] = {}
        self.number = 0

    @rule(handle=st.integers(1, 3), blocks=BLOCKS)
    def begin(self, handle: int, blocks: list[int]) -> None:
        self.number += 1
        new = job(self.number, handle, blocks)
        self.table.add(new, blocks)
        self.model[new.key] = (handle, set(blocks))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([*self.model, JobKey(9, 9, 9)]))
        self.table.remove(key)
        self.model.pop(key, None)

    @rule(blocks=BLOCKS)
    def writing_waits_for_whoever_touches(self, blocks: list[int]) -> None:
        touching = {key for key, (_, held) in self.model.items() if held & set(blocks)}
        assert self.table.touching(blocks) == touching

    @invariant()
    def requests_know_their_jobs(self) -> None:
        for handle in (1, 2, 3):
            expected = {key for key, (owner, _) in self.model.items() if owner == handle}
            assert self.table.of_request(handle) == expected

    @invariant()
    def nothing_is_left_behind(self) -> None:
        assert self.table.all() == set(self.model)
        if not self.model:
            assert not self.table._by_block
            assert not self.table._by_handle


TestTableAgainstModel = TableAgainstModel.TestCase


@given(computed=st.integers(0, 100), blocks=st.integers(1, 10))
def test_of_a_new_table_only_blocks_from_the_computed_tokens_on_are_written(
    computed: int, blocks: int
) -> None:
    table = list(range(1, blocks + 1))
    rewritten = Rewritten([16])
    rewritten.add_step(
        StepInput(
            requests=[
                ScheduledRequest(handle=1, computed=computed, scheduled=1, blocks=[table], new=True)
            ]
        )
    )
    assert list(rewritten.blocks()) == table[computed // 16 :]


def test_blocks_added_to_a_running_request_and_copy_destinations_are_written() -> None:
    rewritten = Rewritten([16])
    rewritten.add_step(
        StepInput(
            requests=[ScheduledRequest(handle=1, computed=160, scheduled=1, blocks=[[7]])],
            copies=[(3, 4)],
        )
    )
    assert set(rewritten.blocks()) == {7, 4}
    assert rewritten.by_others(2, [7])
    assert rewritten.by_others(1, [4])
    assert not rewritten.by_others(1, [7])
