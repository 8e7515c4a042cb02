"""Frames between engine and agent: whatever is sent arrives, and garbage is refused as such."""

from __future__ import annotations

import contextlib
import types
import typing
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload_api.wire import framing
from kvoffload_api.wire.framing import (
    HEADER,
    MAX_MESSAGE_BYTES,
    FramingError,
    decode_from_agent,
    decode_from_engine,
    decode_header,
    encode,
)
from kvoffload_api.wire.messages import FromAgent, FromEngine, Message, NewRequest, Reset
from kvoffload_api.wire.params import NO_PARAMS, pack_params

FROM_ENGINE: tuple[type[Message], ...] = typing.get_args(FromEngine)
FROM_AGENT: tuple[type[Message], ...] = typing.get_args(FromAgent)
Decode = Callable[[bytes], Message]
DECODERS: list[Decode] = [decode_from_engine, decode_from_agent]

# What a client's JSON can hold, within the integers that msgpack has.
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(max_size=12),
    bytes: st.binary(max_size=24),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    types.NoneType: st.none(),
    msgspec.Raw: _json.map(pack_params),
}


def _values(hint: Any) -> st.SearchStrategy[Any]:
    """Return values of a field's type."""
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is list:
        return st.lists(_values(arguments[0]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(_values, arguments))
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=3)
    if arguments:
        return st.one_of(*map(_values, arguments))
    return _messages(hint) if isinstance(hint, msgspec.StructMeta) else _PLAIN[hint]


def _messages(kind: Any) -> st.SearchStrategy[Message]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: _values(hints[name]) for name in kind.__struct_fields__})


_any_from_engine = st.one_of(*map(_messages, FROM_ENGINE))
_any_from_agent = st.one_of(*map(_messages, FROM_AGENT))
_boot_ids = st.integers(0, 2**64 - 1)


def body(message: Message) -> bytes:
    return encode(message, boot_id=1)[HEADER.size :]


def with_params(packed: bytes) -> bytes:
    """Return the body of a ``NewRequest`` whose params are these bytes."""
    whole = body(NewRequest(1, "r", 1, 1, b"", params=NO_PARAMS))
    end = b"\xc0\xc2"  # params: nil, skip_reading_prefix_cache: false
    assert whole.endswith(end)
    return whole.removesuffix(end) + packed + b"\xc2"


@pytest.mark.parametrize("kind", FROM_ENGINE, ids=lambda kind: kind.__name__)
@given(data=st.data(), boot_id=_boot_ids)
def test_what_an_engine_sends_is_what_the_agent_reads(
    kind: type[Message], data: st.DataObject, boot_id: int
) -> None:
    message = data.draw(_messages(kind))

    frame = encode(message, boot_id=boot_id)

    assert decode_header(frame[: HEADER.size]) == (len(frame) - HEADER.size, boot_id)
    assert decode_from_engine(frame[HEADER.size :]) == message


@pytest.mark.parametrize("kind", FROM_AGENT, ids=lambda kind: kind.__name__)
@given(data=st.data(), boot_id=_boot_ids)
def test_what_the_agent_sends_is_what_an_engine_reads(
    kind: type[Message], data: st.DataObject, boot_id: int
) -> None:
    message = data.draw(_messages(kind))

    frame = encode(message, boot_id=boot_id)

    assert decode_header(frame[: HEADER.size]) == (len(frame) - HEADER.size, boot_id)
    assert decode_from_agent(frame[HEADER.size :]) == message


def test_every_message_has_a_direction_and_no_two_share_a_name() -> None:
    names = [kind.__name__ for kind in FROM_ENGINE + FROM_AGENT]

    assert len(set(names)) == len(names)
    parts = {
        "Group",
        "ScheduledBlocks",
        "Handoff",
        "Plan",
        "SegmentInfo",
        "SharedLayer",
        "CopyFailed",
    }
    assert {kind.__name__ for kind in Message.__subclasses__()} == set(names) | parts


@given(_any_from_engine)
def test_the_agent_never_sends_what_an_engine_says(message: Message) -> None:
    with pytest.raises(FramingError, match="not a message of the agent"):
        decode_from_agent(body(message))


@given(_any_from_agent)
def test_an_engine_never_sends_what_the_agent_says(message: Message) -> None:
    with pytest.raises(FramingError, match="not a message of an engine"):
        decode_from_engine(body(message))


@given(_any_from_engine)
def test_half_a_message_is_refused(message: Message) -> None:
    whole = body(message)

    for end in range(len(whole)):
        with pytest.raises(FramingError):
            decode_from_engine(whole[:end])


@given(_any_from_engine, st.binary(min_size=1, max_size=8))
def test_bytes_after_a_message_are_refused(message: Message, more: bytes) -> None:
    with pytest.raises(FramingError):
        decode_from_engine(body(message) + more)


def _read_or_refused(decode: Decode, garbage: bytes) -> None:
    """Fail on any exception that is not a ``FramingError``."""
    with contextlib.suppress(FramingError):
        assert isinstance(decode(garbage), Message)


@pytest.mark.parametrize("decode", DECODERS, ids=["by the agent", "by an engine"])
@given(garbage=st.binary(max_size=200))
def test_garbage_is_refused_and_never_crashes(decode: Decode, garbage: bytes) -> None:
    _read_or_refused(decode, garbage)


@given(st.data(), _any_from_engine | _any_from_agent)
def test_a_damaged_message_is_read_or_refused(data: st.DataObject, message: Message) -> None:
    damaged = bytearray(body(message))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))

    for decode in DECODERS:
        _read_or_refused(decode, bytes(damaged))


@given(st.binary(max_size=60))
def test_params_of_any_bytes_are_read_or_refused(packed: bytes) -> None:
    _read_or_refused(decode_from_engine, with_params(packed))


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"\x91" * 100_000 + b"\xc0", id="lists 100,000 deep"),
        pytest.param(b"\x81\x01" * 100_000 + b"\xc0", id="maps 100,000 deep"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="a list that claims 4 billion items"),
        pytest.param(b"\xdd\x10\xff\xff\xff" * 100, id="such lists 100 deep"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="a map that claims 4 billion items"),
        pytest.param(b"\xc6\xff\xff\xff\xff", id="a blob that claims 4 GiB"),
        pytest.param(b"\xc1", id="the code that msgpack never uses"),
    ],
)
def test_params_whose_end_cannot_be_found_make_no_message(packed: bytes) -> None:
    with pytest.raises(FramingError, match="not a message of an engine"):
        decode_from_engine(with_params(packed))


def test_after_a_refusal_the_decoder_is_as_before() -> None:
    with pytest.raises(FramingError):
        decode_from_engine(with_params(b"\x91" * 100_000))

    assert decode_from_engine(with_params(b"\x05")) == NewRequest(
        1, "r", 1, 1, b"", params=pack_params(5)
    )


@given(st.binary(min_size=HEADER.size, max_size=HEADER.size))
def test_any_header_is_read_or_refused(header: bytes) -> None:
    length = int.from_bytes(header[:4], "little")
    boot_id = int.from_bytes(header[4:], "little")

    if 1 <= length <= MAX_MESSAGE_BYTES:
        assert decode_header(header) == (length, boot_id)
    else:
        with pytest.raises(FramingError, match=str(length)):
            decode_header(header)


@pytest.mark.parametrize("length", [1, MAX_MESSAGE_BYTES])
def test_a_length_within_bounds_is_read(length: int) -> None:
    assert decode_header(HEADER.pack(length, 7)) == (length, 7)


@pytest.mark.parametrize("length", [0, MAX_MESSAGE_BYTES + 1, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused_before_anything_is_read(length: int) -> None:
    with pytest.raises(FramingError, match=str(MAX_MESSAGE_BYTES)):
        decode_header(HEADER.pack(length, 7))


def test_a_message_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    message = NewRequest(1, "r", 1, 1, bytes(1000))
    size = len(body(message))

    monkeypatch.setattr(framing, "MAX_MESSAGE_BYTES", size)
    assert len(encode(message, boot_id=1)) == HEADER.size + size
    monkeypatch.setattr(framing, "MAX_MESSAGE_BYTES", size - 1)
    with pytest.raises(FramingError, match=f"{size} bytes"):
        encode(message, boot_id=1)


def test_the_header_is_the_length_then_the_boot_id_in_little_endian() -> None:
    frame = encode(Reset(5), boot_id=0x0102030405060708)

    assert frame[:4] == (len(frame) - 12).to_bytes(4, "little")
    assert frame[4:12] == bytes([8, 7, 6, 5, 4, 3, 2, 1])
    assert msgspec.msgpack.decode(frame[12:]) == ["Reset", 5]
