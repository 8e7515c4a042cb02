"""Tells uv what pip was told: indexes, certificates and links, in variables or in pip.conf."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

# pip's setting, and the variable that uv reads. Extra indexes are separated by spaces in both.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
DEADLINE_SECONDS = 60.0


def from_configuration(python: Path) -> dict[str, str]:
    """Return pip's settings by name, from its configuration files and PIP_ variables.

    Args:
        python: An environment's Python that has pip.

    Returns:
        For example ``{"index-url": "https://..."}``; empty if pip does not answer.
    """
    try:
        listed = subprocess.run(
            [str(python), "-m", "pip", "config", "list"],
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_SECONDS,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse(listed)


def parse(listed: str) -> dict[str, str]:
    """Return the settings in what ``pip config list`` prints: ``section.name='value'`` lines.

    Variables (section ``:env:``) win over a command's own section, and that over ``global``.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        full_name, _, value = line.partition("=")
        section, _, name = full_name.partition(".")
        try:
            text = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            continue
        if section in sections and isinstance(text, str):
            sections[section][name] = text
    return {**sections["global"], **sections["install"], **sections[":env:"]}


def for_uv(settings: Mapping[str, str]) -> dict[str, str]:
    """Return uv's variables for pip's settings, less those that uv was told itself."""
    variables: dict[str, str] = {}
    for name, variable in UV_VARIABLES.items():
        value = settings.get(name, "")
        if name == "find-links":
            # pip separates with white space and ignores folders that are not there; uv does
            # neither.
            value = ",".join(x for x in value.split() if "://" in x or Path(x).exists())
        elif name == "extra-index-url":
            value = " ".join(value.split())
        if value and variable not in os.environ:
            variables[variable] = value
    return variables
