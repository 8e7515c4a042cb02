"""What ``kv_connector_extra_config`` may hold."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvoffload_client.vllm.config import ConnectorConfig, ConnectorConfigError


def engine(*, engine_id: str = "e", instance_id: str = "i") -> SimpleNamespace:
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(engine_id=engine_id), instance_id=instance_id
    )


def test_without_any_setting_the_socket_of_the_device_plugin_is_used() -> None:
    settings = ConnectorConfig.from_extra_config({}).client_settings(engine(), environ={})
    assert settings.socket_path == "/run/kvoffload/agent.sock"
    assert settings.hook_deadline_seconds == 0.005


def test_the_environment_of_the_pod_is_used_before_the_default() -> None:
    environ = {"KVOFFLOAD_SOCKET": "/a/socket", "KVOFFLOAD_TOKEN_FILE": "/a/token"}
    settings = ConnectorConfig.from_extra_config({}).client_settings(engine(), environ=environ)
    assert (settings.socket_path, settings.token_path) == ("/a/socket", "/a/token")


def test_the_command_line_is_used_before_the_environment() -> None:
    config = ConnectorConfig.from_extra_config({"socket_path": "/b", "hook_deadline_ms": 20})
    settings = config.client_settings(engine(), environ={"KVOFFLOAD_SOCKET": "/a"})
    assert (settings.socket_path, settings.hook_deadline_seconds) == ("/b", 0.020)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"sokcet_path": "/b"}, "has no sokcet_path; it may set socket_path"),
        ({"socket_path": "relative"}, "socket_path must be an absolute path"),
        ({"socket_path": 7}, "socket_path must be an absolute path"),
        ({"hook_deadline_ms": 0}, "hook_deadline_ms must be above 0"),
        ({"hook_deadline_ms": True}, "hook_deadline_ms must be above 0"),
        ({"hook_deadline_ms": 1001}, "at most 1000"),
        ({"hook_deadline_ms": float("nan")}, "hook_deadline_ms must be above 0"),
        ({"blocks_per_chunk": 0}, "blocks_per_chunk must be an integer of at least 1"),
        ({"blocks_per_chunk": "2"}, "blocks_per_chunk must be an integer of at least 1"),
        ({"blocks_per_chunk": True}, "blocks_per_chunk must be an integer of at least 1"),
    ],
)
def test_a_value_that_cannot_work_is_one_clear_line(extra: dict[str, object], said: str) -> None:
    with pytest.raises(ConnectorConfigError, match=said) as caught:
        ConnectorConfig.from_extra_config(extra)
    assert "\n" not in str(caught.value)


def test_two_engines_that_were_given_one_engine_id_have_different_sessions() -> None:
    config = ConnectorConfig()
    first = config.client_settings(engine(instance_id="one"), environ={})
    second = config.client_settings(engine(instance_id="two"), environ={})
    assert first.session_key != second.session_key
