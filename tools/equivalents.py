"""Which mutants cannot be told from the original, by pattern, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Changes that cannot be told, as a function, the line put in instead, and why; both are patterns.
EQUIVALENT = (
    (
        r"RankQueue\.clear",
        r"self\._(queue|snapshot|noted|num_noted) = .*",
        "a queue without a bound is filled anew before anything of it is read",
    ),
    (
        r"RankQueue\._from_queue",
        r"(valid = .*3 \* count.*|if len\(valid\) .*)",
        "how much of the queue of victims is looked at first: cost, not victims",
    ),
    (
        r"RankQueue\._sort",
        r"order = np\.argsort\(ranks, (kind=.*)?\)",
        "`kind` of a sort whose ties are put in order afterwards",
    ),
    (
        r"\w+\.reset",
        r"self\._epoch (-= 1|\+= 2)",
        "an epoch is only ever compared with an earlier one: any other number does",
    ),
    (
        r"AdaptiveReplacement\._ghost_hit",
        r'(recent|frequent)\[key\] = ""',
        "the values of a `dict` that serves as an ordered set are never read",
    ),
    (
        r"key_of|_ghosts",
        r".*(from_bytes\(ghost\[.*\], \)|to_bytes\(_GROUP_BYTES, \)).*",
        "`big` is the default byte order since Python 3.11",
    ),
    (
        r"_wanted_tiers|TailLookup\.run",
        r"(understood|bridge_pending) = None",
        "None instead of False, in a variable that is only asked whether it is true",
    ),
    (r"_lower", r'.* else "XXXX"', "no medium and no locality has either name"),
)


def why_equivalent(changed: Sequence[str]) -> str:
    """Return why a change makes no difference, "" if it may make one."""
    function = changed[0].removeprefix("# ") if changed else ""
    before, after = ("\n".join(line[1:] for line in changed[at::2]) for at in (1, 2))
    if not before:  # the change is not known
        return ""
    if re.sub(r", (strict=\w+)?\)", ")", before) == re.sub(r", (strict=\w+)?\)", ")", after):
        return "`zip` without `strict`: the lengths are equal, the check never fails"
    if "np.array([" in before and re.sub(r", (dtype=[\w.]+)?\)", ")", before) == re.sub(
        r", (dtype=[\w.]+)?\)", ")", after
    ):
        return "`dtype` left to numpy, which takes int64 for integers on the platforms supported"
    reasons = (
        reason
        for where, what, reason in EQUIVALENT
        if re.fullmatch(where, function) and re.fullmatch(what, after)
    )
    return next(reasons, "")
