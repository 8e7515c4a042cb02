"""Where the installed program begins: a plain ``pip install`` lacks what it needs to run."""

from __future__ import annotations

import sys
from typing import Final

# As the command line answers wrong usage: whoever installed it must act.
EXIT_USAGE: Final = 2


def agent() -> None:
    """Run ``kvoffload-agent``; ends with 2 and one line if its extra is not installed."""
    try:
        from kvoffload_agent.cli import main
    except ModuleNotFoundError as error:
        if (error.name or "kvoffload").startswith("kvoffload"):
            raise  # ours: a fault of the package, not of how it was installed
        sys.stderr.write(
            f"kvoffload-agent: the module {error.name} is not installed; "
            "install the agent's extra: pip install 'kvoffload[agent]'\n"
        )
        sys.exit(EXIT_USAGE)
    main()
