"""What PyTorch itself makes of ``CUDA_VISIBLE_DEVICES``, which is not always what CUDA does.

``torch.cuda.device_count()`` reads the variable with rules of its own and counts through NVML; the
devices that tensors land on are the driver's. Where the two differ, torch promises devices that
are not there, or hides some. Source: ``torch/cuda/__init__.py`` of torch 2.0 to 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass

_ENDLESS = 64  # what torch takes for "all" before it trims the list to what NVML counts
_PREFIXES = ("GPU-", "MIG-")


@dataclass(frozen=True, slots=True)
class TorchCount:
    """The number of devices that torch counts, None where it asks the driver; or its error."""

    count: int | None
    error: str | None = None


def torch_count(value: str | None, uuids: tuple[str, ...]) -> TorchCount:
    """Return what ``torch.cuda.device_count()`` gives for a value while CUDA is open.

    Parameters
    ----------
    value
        The variable's value, None where it is not set.
    uuids
        The whole GPUs that NVML lists, in its order.
    """
    try:
        named = _parse(value)
    except ValueError as error:
        return TorchCount(None, f"ValueError: {error}")
    if isinstance(named, _Texts):
        return _count_texts(named, uuids)
    if not uuids:
        return TorchCount(None if named else 0)
    beyond = (place for place, number in enumerate(named) if number >= len(uuids))
    return TorchCount(next(beyond, len(named)))


class _Texts(tuple[str, ...]):
    """The entries of a value in UUID form."""

    __slots__ = ()


def _parse(value: str | None) -> _Texts | tuple[int, ...]:
    if value is None:
        return tuple(range(_ENDLESS))
    for prefix in _PREFIXES:
        if value.startswith(prefix):
            return _parse_texts(value, prefix)
    numbers: list[int] = []
    for text in value.split(","):
        number = _leading_number(text.strip())
        if number in numbers:
            return ()
        if number < 0:
            break
        numbers.append(number)
    return tuple(numbers)


def _parse_texts(value: str, prefix: str) -> _Texts | tuple[int, ...]:
    found: list[str] = []
    for text in value.split(","):
        if text in found:
            return ()
        if not text.startswith(prefix):
            break
        found.append(text)
    return _Texts(found)


def _leading_number(text: str) -> int:
    """Read a number as torch does: a sign alone is an error, since it never looks for a digit."""
    end = 0
    for place, letter in enumerate(text):
        if not (letter.isdigit() or (place == 0 and letter in "+-")):
            break
        end = place + 1
    return int(text[:end]) if end else -1


def _count_texts(named: _Texts, uuids: tuple[str, ...]) -> TorchCount:
    if named[0].startswith("MIG-") or not uuids:
        return TorchCount(None)
    found: list[int] = []
    for text in named:
        # Letter by letter, where the driver takes either case and knows of no dashes.
        fits = [place for place, uuid in enumerate(uuids) if uuid.startswith(text)]
        if len(fits) != 1:
            break
        if fits[0] in found:
            return TorchCount(0)
        found.append(fits[0])
    return TorchCount(len(found))
