"""Amounts as people write them: ``"20GiB"``, ``"10m"``, and back again for display."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jupyter_gpu.core.errors import RequestError

if TYPE_CHECKING:
    from fractions import Fraction

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)\s*")
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LEAST_PLAIN_BYTES = 2**20
_VULGAR = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def _amount(given: object, units: Mapping[str, float]) -> float | None:
    """Return an amount in its base unit; None for what is no amount, or an endless one."""
    if isinstance(given, bool):
        return None
    number, unit = given, ""
    if isinstance(given, str):
        match = _NUMBER.fullmatch(given)
        number, unit = (match[1], match[2].lower()) if match else (None, "")
    if not isinstance(number, (int, float, str)) or unit not in units:
        return None
    try:
        amount = float(number) * units[unit]
    except OverflowError:
        return None
    return amount if math.isfinite(amount) and amount >= 0 else None


def parse_seconds(option: str, given: object) -> float:
    """Return a time in seconds from ``"8s"``, ``"10m"``, ``"1.5h"``, ``30`` or ``0``.

    Raises
    ------
    RequestError
        When ``given`` is not a time of zero or more.
    """
    amount = _amount(given, _SECONDS)
    if amount is None:
        raise RequestError(option, given, 'a time such as "8s", "10m", "2h" or 0')
    return amount


def parse_bytes(option: str, given: object) -> int:
    """Return a number of bytes from ``"20GiB"``, ``"500 MB"`` or a plain number of bytes.

    A plain number below a mebibyte is refused: whoever writes 20 means gibibytes.

    Raises
    ------
    RequestError
        When ``given`` is not an amount of memory.
    """
    amount = _amount(given, _BYTES)
    plain = isinstance(given, (int, float)) or (isinstance(given, str) and given.strip().isdigit())
    if amount is None or (plain and 0 < amount < _LEAST_PLAIN_BYTES):
        raise RequestError(option, given, 'an amount of memory such as "20GiB" or "500MB"')
    return int(amount)


def as_text(number_bytes: int) -> str:
    """Return bytes as a person writes them, exactly: ``"20GiB"``, ``"500MiB"``, ``"123B"``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if number_bytes and number_bytes % size == 0:
            return f"{number_bytes // size}{unit}"
    return f"{number_bytes}B"


def in_gib(number_bytes: int | None, *, digits: int = 1) -> str:
    """Return bytes as gibibytes without the unit, ``"–"`` where unknown."""
    return "–" if number_bytes is None else f"{number_bytes / 2**30:.{digits}f}"


def in_words(count: int, noun: str = "GPU") -> str:
    """Return ``"1 GPU"``, ``"2 GPUs"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def fraction_words(part: Fraction) -> str:
    """Return ``"¼"``, ``"3/10"`` where there is no sign for it, ``"1"`` for the whole."""
    import unicodedata  # noqa: PLC0415 - only where there are shares

    text = str(part)
    signs = {unicodedata.normalize("NFKC", sign).replace("⁄", "/"): sign for sign in _VULGAR}
    return signs.get(text, text)
