"""What a person gives to a monitor: which devices, how often, how much; read strictly."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_gpu.core.errors import GPUError, RequestError
from jupyter_gpu.core.policy import named
from jupyter_gpu.core.quantities import parse_seconds

if TYPE_CHECKING:
    from jupyter_gpu.core.devices import Device
    from jupyter_gpu.core.overview import Overview

LEAST_SECONDS, MOST_SECONDS = 0.1, 60.0
_INTERVAL = 'a time from 100ms to 60s, such as "1s"'
_FORM = 'a physical index, a UUID, "cuda:0", or a list of those'
_ORDINAL = re.compile(r"cuda:([0-9]{1,6})")
_MOST_GPUS = 10**6
_INDEX = re.compile(r"[0-9]{1,6}")


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """Have IPython show an error of ours as its sentence, without a trace through our modules."""
    try:
        yield
    except GPUError as error:
        show_as_sentence(error)
        raise


def show_as_sentence(error: GPUError) -> None:
    """Make IPython show an error as its sentence."""
    lines = str(error).splitlines()
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined] # IPython's own protocol


def interval_seconds(given: object) -> float:
    """Return the time between two looks.

    Raises
    ------
    RequestError
        When it is no time, or outside of what makes sense.
    """
    try:
        seconds = parse_seconds("interval", given)
    except RequestError:
        raise RequestError("interval", given, _INTERVAL) from None
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise RequestError("interval", given, _INTERVAL)
    return seconds


def flag(option: str, given: object, *, unknown: bool = False) -> bool:
    """Return a yes or no, in which ``None`` is ``unknown`` where that is allowed.

    Raises
    ------
    RequestError
        When it is anything else.
    """
    if isinstance(given, bool):
        return given
    raise RequestError(option, given, "True, False or None" if unknown else "True or False")


def file_path(given: object) -> str:
    """Return the path of a file as text.

    Raises
    ------
    RequestError
        When it is no path that a file could have.
    """
    if not isinstance(given, (str, PathLike)) or "\0" in str(given):
        raise RequestError("path", given, 'the path of a file such as "run.svg"')
    try:
        path = str(Path(given).expanduser())
        os.fsencode(path)
    except UnicodeError:
        raise RequestError("path", given, "a path that a file can have") from None
    except RuntimeError:  # the home of nobody
        raise RequestError("path", given, "a path: there is no such user here") from None
    return path


def device_names(given: object) -> tuple[str, ...] | None:
    """Return the names of devices as text, None for the visible ones.

    Raises
    ------
    RequestError
        When it is not the form of devices, or none is named.
    """
    if given is None:
        return None
    items = given.split(",") if isinstance(given, str) else given
    if isinstance(items, int) and not isinstance(items, bool):
        items = (items,)
    if not isinstance(items, Iterable) or isinstance(items, (bytes, bytearray)):
        raise RequestError("devices", given, _FORM)
    names = tuple(_name(item, given) for item in items)
    if not names:
        raise RequestError("devices", given, _FORM)
    return names


def chosen_uuids(names: tuple[str, ...], overview: Overview) -> tuple[str, ...]:
    """Return the UUIDs of named devices, in their order, each once.

    A GPU in MIG mode stands for its MIG devices, as CUDA sees no other.

    Raises
    ------
    RequestError
        When a name means no device of this machine.
    GPUError
        When nobody can tell, with the reason.
    """
    problem = overview.inventory.problem
    if problem is not None and not overview.inventory.devices:
        raise GPUError(problem)
    found = (uuid for name in names for uuid in _uuids(name, overview))
    return tuple(dict.fromkeys(found))


def _name(item: object, given: object) -> str:
    if isinstance(item, bool) or not isinstance(item, (int, str)):
        raise RequestError("devices", given, _FORM)
    if isinstance(item, int) and not 0 <= item < _MOST_GPUS:
        raise RequestError("devices", item, _FORM)
    text = str(item).strip()
    uuid = text.isprintable() and text.upper().startswith(("GPU-", "MIG-"))
    if not uuid and not _ORDINAL.fullmatch(text) and not _INDEX.fullmatch(text):
        raise RequestError("devices", item, _FORM)
    return text


def _uuids(name: str, overview: Overview) -> Iterator[str]:
    ordinal = _ORDINAL.fullmatch(name)
    if ordinal is not None:
        rows = [row for row in overview.shown if row.ordinal == int(ordinal[1])]
        if not rows or rows[0].uuid is None:
            raise RequestError("devices", name, f"visible here: {_visible(overview)}")
        yield rows[0].uuid
        return
    found = [one for one in overview.inventory.devices if named(one, name)]
    uuids = {one.uuid for one in found if one.kind == found[0].kind}
    if len(uuids) > 1 and not _INDEX.fullmatch(name):
        raise RequestError("devices", name, f"one device: {len(uuids)} have a UUID that begins so")
    device = found[0] if found else None
    within = [] if device is None else _within(device, overview)
    if not within:
        raise RequestError("devices", name, f"a device of this machine: {_all(overview)}")
    yield from within


def _within(device: Device, overview: Overview) -> list[str]:
    devices = overview.inventory.devices
    parts = [one for one in devices if one.parent == device.uuid] if device.mig_mode else []
    return [one.uuid for one in (parts or [device]) if one.uuid is not None]


def _visible(overview: Overview) -> str:
    last = max((row.ordinal for row in overview.shown), default=None)
    if last is None:
        return "no device is"
    return "only cuda:0 is" if last == 0 else f"cuda:0 to cuda:{last} are"


def _all(overview: Overview) -> str:
    indices = sorted(gpu.index for gpu in overview.inventory.gpus)
    if not indices:
        return "it has none"
    whole = indices == list(range(len(indices)))
    if len(indices) == 1:
        return f"it has physical {indices[0]}"
    if whole:
        return f"it has physical 0 to {indices[-1]}"
    return f"it has physical {', '.join(map(str, indices))}"
