"""The one parser of byte quantities, for the CRDs, operator, agent, CLI and chart.

The grammar is a part of Kubernetes' own: positive whole numbers with an optional suffix.
What it leaves out (fractions, exponents, signs, milli-bytes, zero) reads as something else in
one place or another of every chart that we know.
"""

from __future__ import annotations

import re
from typing import Final

PATTERN: Final = r"^[1-9][0-9]{0,17}(Ki|Mi|Gi|Ti|k|M|G|T)?$"
# 18 digits and a suffix of two letters.
MAX_LENGTH: Final = 20
MINIMUM: Final = "1Mi"
# 1Pi, in a suffix that is accepted.
MAXIMUM: Final = "1024Ti"
MINIMUM_BYTES: Final = 2**20
MAXIMUM_BYTES: Final = 2**50

ACCEPTED: Final = (
    "a whole number of bytes from 1Mi to 1024Ti with one of the suffixes Ki, Mi, Gi, Ti (binary) "
    "or k, M, G, T (decimal), such as 64Gi or 500G; no sign, fraction, exponent, blank or 'B'"
)

_FORM: Final = re.compile(r"([1-9][0-9]{0,17})(Ki|Mi|Gi|Ti|k|M|G|T)?")
_UNITS: Final = {
    "Ti": 2**40,
    "Gi": 2**30,
    "Mi": 2**20,
    "Ki": 2**10,
    "T": 10**12,
    "G": 10**9,
    "M": 10**6,
    "k": 10**3,
}
# Long enough for every accepted text; an error message must not carry a whole document.
_SHOWN: Final = 40


class QuantityError(ValueError):
    """The user must write the quantity in an accepted form; the message says which."""


def parse_quantity(text: str) -> int:
    """Return the bytes that a quantity stands for.

    Args:
        text: Such as ``64Gi``.

    Raises:
        QuantityError: It is no text, not of an accepted form, or out of bounds.
    """
    if not isinstance(text, str):
        raise QuantityError(f"must be a string, {ACCEPTED}")
    match = _FORM.fullmatch(text)
    if match is None:
        raise QuantityError(f"`{text[:_SHOWN]}` is not {ACCEPTED}")
    number, unit = match.groups()
    value = int(number) * _UNITS.get(unit, 1)
    if value < MINIMUM_BYTES:
        raise QuantityError(f"`{text}` is less than {MINIMUM}: give {ACCEPTED}")
    if value > MAXIMUM_BYTES:
        raise QuantityError(f"`{text}` is more than {MAXIMUM}: give {ACCEPTED}")
    return value


def format_quantity(value: int) -> str:
    """Return the shortest accepted text that stands for exactly ``value`` bytes.

    Raises:
        QuantityError: It is out of bounds.
    """
    if not MINIMUM_BYTES <= value <= MAXIMUM_BYTES:
        raise QuantityError(f"{value} bytes are not within {MINIMUM} and {MAXIMUM}")
    forms = [str(value)]
    forms += [f"{value // size}{unit}" for unit, size in _UNITS.items() if value % size == 0]
    return min(forms, key=len)
