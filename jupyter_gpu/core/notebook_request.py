"""What a notebook asks for in its own metadata, within what its kernelspec allows. Pure.

A course hands out one notebook that says what it needs; whoever opens it has picked a kernelspec,
and that stays the most that it can get: what the notebook says can narrow it, never widen it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from jupyter_gpu.core.errors import RequestError, UnknownOption
from jupyter_gpu.core.kernelspec import TITLE, display_name
from jupyter_gpu.core.leases import clean
from jupyter_gpu.core.quantities import as_text
from jupyter_gpu.core.request import OPTIONS, MemoryCap, Request

if TYPE_CHECKING:
    from fractions import Fraction

KEY = "jupyter_gpu"
# What a kernel does without a device is for the front end that starts it.
NOTEBOOK_OPTIONS = tuple(name for name in OPTIONS if name != "on_unavailable")

_SENTENCE_LIMIT = 600


@dataclass(frozen=True, slots=True)
class Combined:
    """The request that counts, whose it is, and what its person must be told.

    There is a sentence for each thing that was not granted, and one for a kernel without a GPU
    because its notebook wants none.
    """

    request: Request
    origin: Literal["notebook", "kernelspec"] = "kernelspec"
    notices: tuple[str, ...] = ()


def combined(
    kernelspec: Request,
    notebook_options: Mapping[str, object] | None,
    name: str,
    *,
    title: str = TITLE,
) -> Combined:
    """Return what a kernel asks for whose notebook has a request of its own.

    Parameters
    ----------
    kernelspec
        The most that the kernel can get. One without a GPU stays without.
    notebook_options
        What stands in the notebook's metadata; None where nothing does.
    name
        The notebook's name, for the sentences.
    title
        What the kernelspec is called without its GPUs, to name another one to pick.

    Raises
    ------
    RequestError
        For an option that a notebook does not have, or a value that is not of its form; the
        sentence names the notebook.
    """
    if not notebook_options:
        return Combined(kernelspec)
    name = clean(name)
    try:
        wish = _read(notebook_options)
    except RequestError as error:
        raise in_metadata(error, name)  # noqa: B904 - the same error, with where it stands
    given = {option for option, value in notebook_options.items() if value is not None}
    if kernelspec.gpus == 0:
        given &= {"gpus"}  # the others are about devices, and there are none
    objections = {
        "gpus": _too_many(kernelspec, wish, title),
        "devices": _other_devices(kernelspec, wish),
        "min_free_memory": _less_memory(kernelspec, wish),
        "model": _another_model(kernelspec, wish),
        "memory_cap": _higher_cap(kernelspec, wish),
    }
    notices = [
        f"{name} asks for {objection}"
        for option, objection in objections.items()
        if option in given and objection is not None
    ]
    if kernelspec.gpus != 0 and "gpus" in given and wish.gpus == 0:
        notices.append(f"{name} asks for no GPU itself ({KEY} in its metadata).")
    taken = {option for option in given if objections.get(option) is None}
    request = _merged(kernelspec, wish, taken)
    return Combined(request, "notebook" if taken else "kernelspec", tuple(notices))


def in_metadata(error: RequestError, name: str) -> RequestError:
    """Return an error whose sentence says in which notebook's metadata the request stands.

    What a notebook says can be endless, so the middle of a long sentence is left out.
    """
    sentence = str(error)
    if len(sentence) > _SENTENCE_LIMIT:
        half = _SENTENCE_LIMIT // 2
        sentence = f"{sentence[:half]} … {sentence[-half:]}"
    error.args = (f"{sentence}\nIt stands in the metadata of {clean(name)}.",)
    return error


def _read(options: Mapping[str, object]) -> Request:
    for option, value in options.items():
        if option == "on_unavailable":
            accepted = "a notebook's to say: it belongs in the kernelspec"
            raise RequestError(option, value, accepted)
        if option not in NOTEBOOK_OPTIONS:
            raise UnknownOption(option, NOTEBOOK_OPTIONS)
    return Request.parse(options)


def _merged(kernelspec: Request, wish: Request, taken: set[str]) -> Request:
    """Return the kernelspec's request with the options that are taken from the notebook's."""

    def source(option: str) -> Request:
        return wish if option in taken else kernelspec

    amount = source("gpus")
    return replace(
        kernelspec,
        gpus=amount.gpus,
        share=amount.share,
        profile=amount.profile,
        devices=source("devices").devices,
        min_free_memory_bytes=source("min_free_memory").min_free_memory_bytes,
        model=source("model").model,
        wait_seconds=source("wait").wait_seconds,
        identifiers=source("identifiers").identifiers,
        topology=source("topology").topology,
        cpu_affinity=source("cpu_affinity").cpu_affinity,
        memory_cap=source("memory_cap").memory_cap,
    )


def _too_many(kernelspec: Request, wish: Request, title: str) -> str | None:
    """Return what is asked for where that is more, and what to pick instead."""
    if wish.gpus == 0:
        return None
    if kernelspec.profile is not None:
        # A share of a GPU and a MIG device have no common measure.
        allowed = wish.profile == kernelspec.profile
    else:
        allowed = _gpus_at_most(wish) <= _gpus_at_most(kernelspec)
    if allowed:
        return None
    if kernelspec.gpus == 0:
        limit = "has none"
    elif isinstance(kernelspec.amount, int):
        limit = f"allows {kernelspec.amount}"
    else:
        limit = f"allows {kernelspec.amount_in_words()}"
    pick = display_name(title, {"gpus": wish.amount})
    return f"{wish.amount_in_words()}; this kernelspec {limit}: pick {pick}."


def _gpus_at_most(request: Request) -> Fraction | float:
    """Return how many GPUs it can come to: a share exactly, 1 for a MIG device."""
    if request.gpus == "all":
        return math.inf
    return request.gpus if request.share is None else request.share


def _other_devices(kernelspec: Request, wish: Request) -> str | None:
    allowed = kernelspec.devices
    if not allowed or all(any(_within(name, one) for one in allowed) for name in wish.devices):
        return None
    asked = f"{'device' if len(wish.devices) == 1 else 'devices'} {_listed(wish.devices)}"
    return f"{asked}; this kernelspec allows {_listed(allowed)}: choose among those."


def _within(name: str, allowed: str) -> bool:
    """Return whether every device that a name can mean is one that the allowed name can mean.

    Indices and UUIDs have no common measure without the machine. A longer piece of a UUID means
    less; the older form of a MIG device's name, with slashes, means a UUID that it does not show.
    """
    name, allowed = name.lower(), allowed.lower()
    longer = not allowed.isdigit() and "/" not in name and name.startswith(allowed)
    return name == allowed or longer


def _less_memory(kernelspec: Request, wish: Request) -> str | None:
    least, asked = kernelspec.min_free_memory_bytes, wish.min_free_memory_bytes
    if least is None or asked is None or asked >= least:
        return None
    return (
        f"{as_text(asked)} of free memory; this kernelspec asks for {as_text(least)}: "
        f"ask for that or more."
    )


def _another_model(kernelspec: Request, wish: Request) -> str | None:
    allowed, asked = kernelspec.model, wish.model
    if allowed is None or asked is None or asked.lower() == allowed.lower():
        return None
    return (
        f"model {clean(asked)}; this kernelspec allows {clean(allowed)}: "
        f"pick one without a model, or leave model out."
    )


def _higher_cap(kernelspec: Request, wish: Request) -> str | None:
    """Return what cap is asked for where it may be higher.

    An amount above the share's part is refused with the device in view, so it is never more than
    ``auto``; ``auto`` itself may be more than an amount.
    """
    most, asked = kernelspec.memory_cap, wish.memory_cap
    if most in ("none", asked):
        return None
    if isinstance(asked, int) and (not isinstance(most, int) or asked <= most):
        return None
    instead = "ask for that or less" if isinstance(asked, int) else "leave memory_cap out"
    return f"memory_cap {_cap(asked)}; this kernelspec allows {_cap(most)}: {instead}."


def _cap(cap: MemoryCap) -> str:
    return as_text(cap) if isinstance(cap, int) else cap


def _listed(devices: tuple[str, ...]) -> str:
    shown, rest = devices[:8], len(devices[8:])
    return ", ".join(map(clean, shown)) + (f" and {rest} more" if rest else "")
