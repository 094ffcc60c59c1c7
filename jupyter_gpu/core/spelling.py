"""The name that was probably meant: of a command, an option, an environment variable. Pure."""

from __future__ import annotations

from collections.abc import Iterable

# Two wrong letters in twenty count; TPU_VISIBLE_DEVICES and its like are further away.
_LEAST_LIKENESS = 0.9
_OTHER_MAKERS = ("HIP_", "ROCR_", "MUSA_", "NVIDIA_")
_PREFIX_LENGTH = len("CUDA_VIS")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'status'?"``, or an empty text where nothing comes near."""
    from difflib import get_close_matches  # noqa: PLC0415 - only after a mistake

    near = get_close_matches(word.lower(), tuple(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def is_misspelt(name: str, variable: str) -> bool:
    """Tell whether an environment variable's name is CUDA_VISIBLE_DEVICES with a slip in it."""
    upper = name.upper()
    # CUDA_VISIBLE_DEVICES_SAVED and OLD_CUDA_VISIBLE_DEVICES are somebody's own, on purpose.
    own = upper.startswith(f"{variable}_") or upper.endswith(f"_{variable}")
    if name == variable or own or upper.startswith(_OTHER_MAKERS):
        return False
    if upper.startswith(variable[:_PREFIX_LENGTH]):
        return True
    # A bound on the likeness that is quick to tell: the letters they share, in any order. Hardly a
    # name reaches it, so that difflib is rarely loaded: status has to answer quickly.
    shared = sum(min(upper.count(letter), variable.count(letter)) for letter in set(variable))
    if 2 * shared < _LEAST_LIKENESS * (len(upper) + len(variable)):
        return False
    from difflib import get_close_matches  # noqa: PLC0415 - see above

    return bool(get_close_matches(upper, (variable,), cutoff=_LEAST_LIKENESS))
