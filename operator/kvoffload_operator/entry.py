"""Where the installed programs begin: a plain ``pip install`` lacks what they need to run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

# As the command line answers wrong usage: whoever installed it must act.
EXIT_USAGE: Final = 2


def operator() -> None:
    """Run ``kvoffload-operator``; ends with 2 and one line if its extra is not installed."""
    _run(_operator, program="kvoffload-operator")


def plugin() -> None:
    """Run ``kubectl kvoffload``; ends with 2 and one line if its extra is not installed."""
    _run(_plugin, program="kubectl-kvoffload")


def _operator() -> Callable[[], None]:
    from kvoffload_operator.cli import main

    return main


def _plugin() -> Callable[[], None]:
    from kvoffload_operator.kubectl.cli import main

    return main


def _run(load: Callable[[], Callable[[], None]], *, program: str) -> None:
    try:
        main = load()
    except ModuleNotFoundError as error:
        if (error.name or "kvoffload").startswith("kvoffload"):
            raise  # ours: a fault of the package, not of how it was installed
        sys.stderr.write(
            f"{program}: the module {error.name} is not installed; "
            "install the operator's extra: pip install 'kvoffload[operator]'\n"
        )
        sys.exit(EXIT_USAGE)
    main()
