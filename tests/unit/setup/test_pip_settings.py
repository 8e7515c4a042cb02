"""uv uses the index and the certificates that pip was told to use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tools.pip_settings import UV_VARIABLES, for_uv, from_configuration, parse


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in UV_VARIABLES.values():
        monkeypatch.delenv(name, raising=False)


def test_uv_is_told_what_pip_was_told(tmp_path: Path) -> None:
    told = for_uv(
        {
            "index-url": "https://index.example/simple",
            "extra-index-url": "https://a.example\nhttps://b.example",
            "cert": "/certificates.pem",
            "find-links": f"{tmp_path} /not/there https://links.example/",
            "no-color": "true",
        }
    )
    assert told == {
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "UV_INDEX": "https://a.example https://b.example",
        "SSL_CERT_FILE": "/certificates.pem",
        "UV_FIND_LINKS": f"{tmp_path},https://links.example/",
    }


def test_what_uv_was_told_itself_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://other.example/simple")
    assert for_uv({"index-url": "https://index.example/simple"}) == {}


def test_variables_win_over_a_commands_section_and_that_over_global() -> None:
    listed = (
        ":env:.cert='/from-variable'\n"
        "global.cert='/from-global'\n"
        "global.index-url='https://global.example'\n"
        "install.index-url='https://install.example'\n"
        "freeze.cert='/of-another-command'\n"
        "not a setting\n"
    )
    assert parse(listed) == {"cert": "/from-variable", "index-url": "https://install.example"}


def test_a_python_without_pip_tells_nothing() -> None:
    assert from_configuration(Path(sys.executable).with_name("no-such-python")) == {}
