"""Helm as people run it: its own process, with folders of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "charts" / "kvoffload"
RELEASE = "kvo"
NAMESPACE = "kvo-system"
AGENTS = "kvoffload-agents"
# What is off by default and tested all the same.
EVERYTHING = ("--set", "admission.mutateEngines=true")
# An install without --wait takes 3 s on an idle machine.
DEADLINE_SECONDS = 120.0

Json = dict[str, Any]


class HelmError(Exception):
    """Helm ended with an error; the text is its stderr."""


@dataclass(frozen=True, kw_only=True)
class Helm:
    """``home`` is for what Helm keeps; with a ``kubeconfig`` it works on that cluster."""

    program: Path
    home: Path
    kubeconfig: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """Run one command and return its stdout.

        Args:
            arguments: Of the command line.
            values: Given to it as a file of values.

        Raises:
            HelmError: it failed.
        """
        more = []
        if values is not None:
            file = self.home / "values.yaml"
            file.write_text(yaml.safe_dump(dict(values)))
            more = ["--values", str(file)]
        done = subprocess.run(
            [str(self.program), *arguments, *more],
            env={
                **os.environ,
                "HELM_CACHE_HOME": str(self.home / "cache"),
                "HELM_CONFIG_HOME": str(self.home / "config"),
                "HELM_DATA_HOME": str(self.home / "data"),
                "KUBECONFIG": str(self.kubeconfig or self.home / "none"),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_SECONDS,
        )
        if done.returncode:
            raise HelmError(done.stderr)
        return done.stdout

    def template(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """Return the rendered manifests."""
        return self(
            "template", RELEASE, str(CHART), "--namespace", NAMESPACE, *arguments, values=values
        )

    def rendered(self, *arguments: str, values: Mapping[str, Any] | None = None) -> list[Json]:
        """Return the rendered objects."""
        text = self.template(*arguments, values=values)
        return [document for document in yaml.safe_load_all(text) if document]

    def install(self, *arguments: str) -> str:
        """Install the chart, without waiting for pods."""
        where = ["--namespace", NAMESPACE, "--create-namespace"]
        return self("install", RELEASE, str(CHART), *where, *EVERYTHING, *arguments)

    def upgrade(self, *arguments: str) -> str:
        """Upgrade the release, without waiting for pods."""
        where = ["--namespace", NAMESPACE]
        return self("upgrade", RELEASE, str(CHART), *where, *EVERYTHING, *arguments)
