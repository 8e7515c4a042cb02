"""Params that come over the wire: more types than JSON has, none of which may widen or crash."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.api.builders import CPU_LOCAL, DISK_LOCAL, NODE, namespaced, pod, policies

from kvoffload_api import resolution
from kvoffload_api.resolution import FIELDS, NOTHING, Effective, essence, tighten, within
from kvoffload_api.wire.framing import HEADER, decode_from_engine, encode
from kvoffload_api.wire.messages import NewRequest
from kvoffload_api.wire.params import MAX_PARAMS_BYTES, pack_params, unpack_params

POLICIES = {
    "no policy": resolution.compile(policies(), pod(), NODE),
    "caps and tiers": resolution.compile(
        policies(
            namespaced(
                load={"maxTokens": 8192, "minTokens": 64, "tiers": [CPU_LOCAL, DISK_LOCAL]},
                store={"maxTokens": 4096, "tiers": []},
            )
        ),
        pod(),
        NODE,
    ),
    "disabled": resolution.compile(policies(namespaced(mode="Disabled")), pod(), NODE),
    "no entry": NOTHING,
}
NAMES = ["max_load_tokens", "max_offload_tokens", "kv_load_tiers"]

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=6)
    | st.binary(max_size=6)
    | st.datetimes(timezones=st.timezones())
    | st.builds(
        msgspec.msgpack.Ext,
        st.integers(-128, 127).filter(lambda code: code != -1),
        st.binary(max_size=4),
    )
    | st.sampled_from(["8", "1k", "cpu", "CPU", "storage", "local", "\0", float("nan")])
)
_keys = (
    st.text(max_size=4)
    | st.integers(-1, 1)
    | st.none()
    | st.binary(max_size=2)
    | st.tuples(st.integers(0, 1))
    | st.sampled_from(["medium", "locality", "Medium", *NAMES])
)
_anything = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=6,
)
_matchers = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "medium": st.sampled_from(["cpu", "STORAGE"]),
            "locality": st.sampled_from(["Local", "remote"]),
        },
    )
    | _anything,
    max_size=3,
)
_params = (
    _anything
    | st.fixed_dictionaries({"kv_load_tiers": _matchers})
    | st.dictionaries(st.sampled_from(NAMES), _anything, min_size=1)
)


def received(params: Any) -> Any:
    """Return what the agent reads of what a client gave."""
    frame = encode(NewRequest(1, "r", 1, 1, b"", params=pack_params(params)), boot_id=0)
    message = decode_from_engine(frame[HEADER.size :])
    assert isinstance(message, NewRequest)
    return unpack_params(message.params)


def no_wider(narrow: Effective, wide: Effective) -> bool:
    wide_values = wide.values()
    return all(within(rule, narrow.values()[rule.path], wide_values[rule.path]) for rule in FIELDS)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
@given(params=_params)
def test_whatever_arrives_only_narrows(policy: Effective, params: Any) -> None:
    found = tighten(policy, received(params))

    assert no_wider(found.effective, policy)
    assert all(len(item.reason) < 200 for item in found.invalid)
    assert found.effective.request_override == policy.request_override
    assert (found.effective.source, found.effective.bucket) == (policy.source, policy.bucket)


@pytest.mark.parametrize("name", NAMES)
@given(value=_anything)
def test_only_whole_numbers_and_lists_change_anything(name: str, value: Any) -> None:
    policy = POLICIES["caps and tiers"]
    found = tighten(policy, received({name: value}))

    is_cap = type(value) is int and value >= 0
    if not (isinstance(value, list) if name == "kv_load_tiers" else is_cap):
        assert found.effective == policy
        assert [item.field for item in found.invalid] == ([] if value is None else [name])


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_valid_cap_is_the_lower_of_both(load: int, store: int) -> None:
    found = tighten(
        POLICIES["caps and tiers"], received({"max_load_tokens": load, "max_offload_tokens": store})
    )

    assert found.effective.load.max_tokens == min(load, 8192)
    assert found.effective.store.max_tokens == min(store, 4096)
    assert found.invalid == ()


@given(_params)
def test_where_requests_are_ignored_none_changes_anything(params: Any) -> None:
    policy = resolution.compile(policies(namespaced(requestOverride="Ignore")), pod(), NODE)

    assert tighten(policy, received(params)).effective == policy


@given(_params)
def test_without_an_entry_no_request_gets_anything(params: Any) -> None:
    found = tighten(NOTHING, received(params)).effective

    assert found.loads_nothing
    assert found.stores_nothing
    assert found.host_memory_capacity == 0
    assert found.local_disk_capacity is None


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
@given(params=_params)
def test_what_is_kept_of_params_is_small_and_narrows_as_the_whole_does(
    policy: Effective, params: Any
) -> None:
    kept = essence(received(params))

    assert tighten(policy, kept).effective == tighten(policy, received(params)).effective
    assert tighten(policy, kept).invalid == ()
    assert len(msgspec.msgpack.encode(kept)) < 300


def _nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"\xdd" + (10**6).to_bytes(4, "big") + b"\x80" * 10**6, id="empty maps"),
        pytest.param(b"\xc6" + (2**20).to_bytes(4, "big") + bytes(2**20), id="1 MiB"),
        pytest.param(b"\xa2\xff\xfe", id="text that is not UTF-8"),
        pytest.param(b"\xa3\xed\xa0\x80", id="half a surrogate pair"),
        pytest.param(b"\x81\x81\x01\x01\x01", id="a map as a key"),
        pytest.param(b"\xc7\x0c\xff" + b"\xff" * 12, id="a time out of range"),
        pytest.param(_nested(60_000), id="lists 60,000 deep"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1", id="the code that msgpack never uses"),
    ],
)
def test_params_that_nobody_can_read_are_as_if_absent_and_named(packed: bytes) -> None:
    tracemalloc.start()
    try:
        value = unpack_params(msgspec.Raw(packed))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20, "nothing is decoded beyond the bound"
    for policy in POLICIES.values():
        found = tighten(policy, value)
        assert found.effective == policy
        assert [item.field for item in found.invalid] == ["kv_transfer_params"]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"x": "y" * MAX_PARAMS_BYTES}, id="too large"),
        pytest.param({"max_load_tokens": 2**64}, id="an integer over 64 bits"),
        pytest.param({"max_load_tokens": object()}, id="an object"),
        pytest.param({"max_load_tokens": "\ud800"}, id="half a surrogate pair"),
    ],
)
def test_what_cannot_be_packed_arrives_as_malformed(value: Any) -> None:
    found = tighten(POLICIES["caps and tiers"], received(value))

    assert found.effective == POLICIES["caps and tiers"]
    assert [item.field for item in found.invalid] == ["kv_transfer_params"]


def test_params_of_the_largest_size_are_read() -> None:
    value = {"max_load_tokens": 7, "x": "y" * (MAX_PARAMS_BYTES - 30)}
    assert received(value) == value
    assert received(None) is None
