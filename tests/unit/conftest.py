"""How many cases the laws are tried with."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadlines: a busy machine is no fault of the code. For the same reason slow generation of
# cases is none; what a test may take in all is pytest's timeout.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same cases in every run, so that a red run says something about the change before it.
settings.register_profile("quick", _COMMON, max_examples=40, derandomize=True, database=None)
# A mutant is met by every law that reaches it: few cases each, or thousands of mutants take a day.
settings.register_profile("mutants", _COMMON, max_examples=15, derandomize=True, database=None)
# New cases in every run.
settings.register_profile("long", _COMMON, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
