"""The Lease elector: two replicas never lead at once, whatever their clocks say."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload_operator.election import (
    LEASE_DURATION_S,
    RENEW_DEADLINE_S,
    Elector,
    Intent,
    Record,
)


def record(holder: str = "other", renewed: str = "r0", transitions: int = 0) -> Record:
    return Record(holder=holder, renewed=renewed, acquired="a0", transitions=transitions)


def test_without_a_lease_the_first_intent_is_to_create_it() -> None:
    assert Elector(identity="me").observe(None, now=0.0) is Intent.CREATE


def test_a_released_lease_is_taken_at_once() -> None:
    assert Elector(identity="me").observe(record(holder=""), now=0.0) is Intent.TAKE


def test_anothers_lease_is_taken_only_after_a_whole_duration_without_change() -> None:
    elector = Elector(identity="me")

    assert elector.observe(record(), now=100.0) is Intent.WAIT
    assert elector.observe(record(), now=100.0 + LEASE_DURATION_S - 0.1) is Intent.WAIT
    assert elector.observe(record(), now=100.0 + LEASE_DURATION_S) is Intent.TAKE


def test_every_change_of_the_record_starts_the_wait_again() -> None:
    elector = Elector(identity="me")
    elector.observe(record(renewed="r0"), now=0.0)

    assert elector.observe(record(renewed="r1"), now=14.0) is Intent.WAIT
    assert elector.observe(record(renewed="r1"), now=28.0) is Intent.WAIT
    assert elector.observe(record(renewed="r1"), now=29.0) is Intent.TAKE


def test_remote_timestamps_are_never_compared_with_a_clock() -> None:
    elector = Elector(identity="me")
    ancient = record(renewed="1970-01-01T00:00:00.000000Z")

    assert elector.observe(ancient, now=0.0) is Intent.WAIT


def test_a_leader_renews_and_gives_up_at_the_renew_deadline() -> None:
    elector = Elector(identity="me")
    mine = record(holder="me")
    elector.observe(None, now=0.0)
    elector.wrote(mine, sent_at=0.0)

    assert elector.observe(mine, now=5.0) is Intent.RENEW
    assert not elector.expired(now=RENEW_DEADLINE_S - 0.1)
    assert elector.expired(now=RENEW_DEADLINE_S)
    assert elector.observe(mine, now=RENEW_DEADLINE_S) is Intent.LOST


def test_a_leader_whose_lease_is_another_s_or_gone_has_lost() -> None:
    for seen in (record(holder="other"), record(holder=""), None):
        elector = Elector(identity="me")
        elector.wrote(record(holder="me"), sent_at=0.0)
        assert elector.observe(seen, now=1.0) is Intent.LOST


def test_a_follower_looks_again_at_the_very_end_of_the_lease() -> None:
    elector = Elector(identity="me")
    elector.observe(record(), now=100.0)

    assert elector.remaining(now=101.0) == LEASE_DURATION_S - 1.0
    assert elector.remaining(now=200.0) == 0.0


def test_a_leader_looks_again_at_its_renew_deadline() -> None:
    elector = Elector(identity="me")
    elector.wrote(record(holder="me"), sent_at=100.0)

    assert elector.remaining(now=101.0) == RENEW_DEADLINE_S - 1.0


def test_a_renew_deadline_that_is_not_below_the_lease_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="renew_deadline"):
        Elector(identity="me", lease_duration=10.0, renew_deadline=10.0)


@dataclass
class Server:
    """A lease with the API server's optimistic lock."""

    record: Record | None = None
    version: int = 0

    def write(self, new: Record, *, version: int) -> bool:
        if version != self.version:
            return False
        self.record, self.version = new, version + 1
        return True


Step = tuple[int, float, bool, float]


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),  # which replica
            st.floats(0.1, 4.0),  # seconds since the last step
            st.booleans(),  # whether its request reaches the server
            st.floats(0.0, 1.0),  # seconds until the answer
        ),
        max_size=80,
    ),
    st.floats(-3600, 3600),
)
def test_two_replicas_never_lead_at_once(steps: list[Step], skew: float) -> None:
    server = Server()
    # Each has a monotonic clock of its own: only differences are comparable.
    offsets = (0.0, skew)
    electors = (Elector(identity="0"), Elector(identity="1"))
    lost = [False, False]
    now, stamp = 0.0, 0
    for who, pause, reaches, delay in steps:
        now += pause
        elector, local = electors[who], now + offsets[who]
        if reaches and not lost[who]:
            seen, version = server.record, server.version
            intent = elector.observe(seen, now=local)
            if intent is Intent.LOST:
                lost[who] = True
            elif intent is not Intent.WAIT:
                stamp += 1
                new = replace(seen or record(), holder=str(who), renewed=str(stamp))
                if server.write(new, version=version):
                    elector.wrote(new, sent_at=local)
                now += delay
        leaders = [
            index
            for index, other in enumerate(electors)
            if other.leading and not lost[index] and not other.expired(now=now + offsets[index])
        ]
        assert len(leaders) <= 1
