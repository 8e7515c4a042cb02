"""Which tests hold the invariants that `docs/reference/properties.md` lists."""

from __future__ import annotations

from typing import Final

MACHINE: Final = "tests/unit/scheduler/test_sessions_machine.py"
LAWS: Final = (
    "tests/unit/scheduler/test_hits_that_are_cut.py",
    "tests/unit/scheduler/test_loads_within_a_step.py",
    "tests/unit/scheduler/test_lookup_laws.py",
    "tests/unit/scheduler/test_store_laws.py",
    "tests/unit/tiers/test_index_against_a_dict.py",
    "tests/unit/tiers/test_policies_against_models.py",
    "tests/unit/tiers/test_pool_laws.py",
    "tests/unit/tiers/test_ranks_begin_anew.py",
)
