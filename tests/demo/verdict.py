"""What the demo must have shown; anything else ends it with exit code 1."""

from __future__ import annotations

from dataclasses import dataclass

from tests.demo.table import Figures


@dataclass(frozen=True, kw_only=True)
class Check:
    """One statement and whether it held."""

    holds: bool
    statement: str


def checks_of_bytes(figures: Figures, *, at_least_bytes: int) -> list[Check]:
    """Return the checks that every act makes."""
    return [
        Check(
            holds=figures.loaded_bytes >= at_least_bytes,
            statement=f"{figures.loaded_bytes:,} bytes were loaded"
            + (f" (at least {at_least_bytes:,})" if at_least_bytes > 1 else ""),
        ),
        Check(
            holds=figures.wrong_blocks == 0 and figures.verified_bytes > 0,
            statement=(
                f"{figures.verified_bytes:,} bytes were verified, "
                f"{figures.wrong_blocks} blocks were wrong"
            ),
        ),
        Check(
            holds=figures.requests == figures.requests_total > 0,
            statement=f"{figures.requests} of {figures.requests_total} requests were served",
        ),
    ]
