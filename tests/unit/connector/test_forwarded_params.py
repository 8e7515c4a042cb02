"""Nothing in a client's ``kv_transfer_params`` breaks the engine or the connection to the agent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload_api.wire.params import pack_params, unpack_params
from kvoffload_client.vllm.params import MAX_VALUE_BYTES, forwardable

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"max_load_tokens": 300},
        {"max_load_tokens": "8", "max_offload_tokens": True, "kv_load_tiers": [{}]},
        {"max_load_tokens": 2**64 - 1},
    ],
)
def test_what_can_travel_travels_as_it_is(params: Any) -> None:
    assert forwardable(params) == params


@pytest.mark.parametrize(
    "value", [2**64, object(), "\ud800", "x" * (MAX_VALUE_BYTES + 1), [[2**70]]]
)
def test_what_cannot_travel_stays_malformed_and_its_neighbours_stay(value: object) -> None:
    forwarded = forwardable({"max_load_tokens": value, "max_offload_tokens": 5})
    assert isinstance(forwarded["max_load_tokens"], str)
    assert forwarded["max_offload_tokens"] == 5


def test_a_value_nested_past_any_use_is_replaced() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert forwardable({"kv_load_tiers": nested}) == {"kv_load_tiers": "<list>"}


@given(st.dictionaries(st.text(), json_values) | json_values)
def test_every_json_value_can_be_sent(params: Any) -> None:
    msgspec.msgpack.decode(msgspec.msgpack.encode(forwardable(params)))


def test_a_cap_arrives_whatever_fills_the_message_beside_it() -> None:
    fields: dict[str, Any] = {f"remote{n}": "x" * (MAX_VALUE_BYTES - 9) for n in range(40)}
    fields["max_load_tokens"] = 7
    packed = pack_params(forwardable(fields))

    received = unpack_params(packed)
    assert received["max_load_tokens"] == 7
    assert received.items() <= fields.items()
    assert len(received) > 3
