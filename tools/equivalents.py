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
        r"RankQueue\._(look_at_all|below_guess)",
        r"(if not max\(size /+ _SLACK, count\) <=? len\(slots\) <=? size \* _SLACK:|if step < 1:)",
        "when a sample is worth a look, by one chunk: cost, not victims",
    ),
    (
        r"\w+\.reset",
        r"self\._epoch (-= 1|\+= 2)",
        "an epoch is only ever compared with an earlier one: any other number does",
    ),
    (
        r"(LeastRecentlyUsed|AdaptiveReplacement)\.(__init__|_next)",
        r"self\._(epoch|tick|base|clock) (= 1|\+= 2)|if self\._tick - self\._base >= _MAX_TICK:",
        "epochs and ticks are only compared with each other: where they begin does not matter",
    ),
    (
        r"(LeastRecentlyUsed|AdaptiveReplacement)\.grow",
        r"more = self\._table\.room \+ .*",
        "rows beyond the table's last are never read",
    ),
    (
        r"(LeastRecentlyUsed|AdaptiveReplacement)\.(__init__|grow)",
        r"self\._(member|list)(: .*)? = np\..*\(.*, (dtype=None)?\)(\]\))?",
        "small numbers of lists compare alike as floats",
    ),
    (
        r"Scratch\.last_to_first",
        r"(if \(at >=? [01]\)|if len\(groups\) >=? 1 and \(ends >=? [01]\))\.all\(\):",
        "an end is at least 1 token, what is not known -1; one group alone is in order already",
    ),
    (
        r"Scratch\.last_to_first",
        r"order = np\.argsort\(at, (kind=\w+|kind=\"STABLE\")?\)",
        "the keys of one group end at different tokens",
    ),
    (
        r"Scratch\.last_to_first",
        r"(order = np\.argsort\(ends, kind=\"STABLE\"\)|at = np\.fromiter\(.*)",
        "numpy takes `STABLE` for `stable`, counts for itself, and sorts positions alike as floats",
    ),
    (
        r"\w+\.(set_caps|rewind|_drop_stale|stores|_last_chunks)|_extend",
        r"(\w+(\[handle\])?\.refused = \"\"|\w+\.wake_at = 1)",
        "a step computes a token at least, and no offer equals a text: both mean `not asleep`",
    ),
    (
        r"split|_count",
        r"(if high < low:|level = np\.full\(high - low, -[12], (dtype=[\w.]+)?\))",
        "no tokens have no tiers either way; any negative number is `not said`, in any type",
    ),
    (
        r"ChunkLookup\._scan|Lookup\.prefix",
        r"(asked|batch) = keys\[.*\] if .* else keys",
        "a slice of all keys instead of the keys themselves: one copy more",
    ),
    (
        r"Lookup\._from_right",
        r"(batch = _GALLOP|version = None)",
        "how many keys are looked up at once, and whether once more: cost, not what is found",
    ),
    (
        r"whole_chunks",
        r"high = (None|\(int\(numbers\[-1\]\) \+ 2\) \* per_chunk)",
        "blocks behind the last chunk are taken along and never read",
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

# Calls of numpy whose arguments are integers, of Python or of numpy, and at least one of them.
_INTEGERS = re.compile(r"np\.(array\(\[|arange\(|(as)?array\((table|chunks|table\[low:high\]), )")


def why_equivalent(changed: Sequence[str]) -> str:
    """Return why a change makes no difference, "" if it may make one."""
    function = changed[0].removeprefix("# ") if changed else ""
    before, after = ("\n".join(line[1:] for line in changed[at::2]) for at in (1, 2))
    if not before:  # the change is not known
        return ""
    if re.sub(r", (strict=\w+)?\)", ")", before) == re.sub(r", (strict=\w+)?\)", ")", after):
        return "`zip` without `strict`: the lengths are equal, the check never fails"
    if _INTEGERS.search(before) and re.sub(r", (dtype=[\w.]+)?\)", ")", before) == re.sub(
        r", (dtype=[\w.]+)?\)", ")", after
    ):
        return "`dtype` left to numpy, which takes int64 for integers on the platforms supported"
    reasons = (
        reason
        for where, what, reason in EQUIVALENT
        if re.fullmatch(where, function) and re.fullmatch(what, after)
    )
    return next(reasons, "")
