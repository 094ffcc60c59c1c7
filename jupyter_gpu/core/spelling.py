"""The name that was probably meant. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'status'?"``, or an empty text where nothing comes near."""
    from difflib import get_close_matches  # noqa: PLC0415 - only after a mistake

    near = get_close_matches(word.lower(), tuple(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
