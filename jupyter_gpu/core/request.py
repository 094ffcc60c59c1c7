"""What a kernel asks for: the options of interface.md, read strictly.

One reader serves the provisioner, the wrapper, the command line and Python, so that an option
means the same everywhere and nothing is ever silently ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from jupyter_gpu.core.errors import RequestError, UnknownOption
from jupyter_gpu.core.layout import DEVICE_UNITS, share_units
from jupyter_gpu.core.quantities import (
    as_text,
    fraction_words,
    in_gib,
    in_words,
    parse_bytes,
    parse_seconds,
)

if TYPE_CHECKING:
    from fractions import Fraction

Identifiers = Literal["auto", "index", "uuid"]
OnUnavailable = Literal["cpu", "wait", "error"]
TopologyWish = Literal["any", "prefer", "require"]
CPUAffinity = Literal["none", "closest"]
MemoryCap = int | str  # bytes, "auto" or "none"

OPTIONS = (
    "gpus",
    "devices",
    "min_free_memory",
    "model",
    "wait",
    "identifiers",
    "topology",
    "cpu_affinity",
    "memory_cap",
    "on_unavailable",
)

_Word = TypeVar("_Word", bound=str)

_SHARE = re.compile(r"([0-9]{1,9})\s*/\s*([0-9]{1,9})")
_NUMBER = re.compile(r"[0-9]{1,9}")
# As NVIDIA names them: "1g.18gb", "1c.3g.40gb", "1g.10gb+me", "2g.20gb-me".
_PROFILE = re.compile(r"(?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb(?:[+-][a-z0-9.+-]+)?")


@dataclass(frozen=True, slots=True)
class Request:
    """What a kernel asks for.

    ``gpus`` is a count or ``"all"``; it is 1 with a ``share``, a part of one device below 1, and
    with a ``profile``, the kind of a MIG device. ``devices`` are physical indices or UUIDs to
    choose from, as text, empty for any; times are in seconds and memory in bytes.
    """

    gpus: int | Literal["all"] = 1
    devices: tuple[str, ...] = ()
    min_free_memory_bytes: int | None = None
    model: str | None = None
    wait_seconds: float = 8.0
    identifiers: Identifiers = "auto"
    topology: TopologyWish = "any"
    cpu_affinity: CPUAffinity = "none"
    memory_cap: MemoryCap = "auto"
    on_unavailable: OnUnavailable = "cpu"
    share: Fraction | None = None
    profile: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, object], *, default_wait: object = "8s") -> Request:
        """Read options as a person or a kernelspec gives them.

        Parameters
        ----------
        options
            Names of interface.md to values; a value of None means "not given".
        default_wait
            What ``wait`` is when it is not given.

        Raises
        ------
        UnknownOption
            For a name that does not exist or is not built yet.
        RequestError
            For a value that is not of its option's form.
        """
        for name in options:
            if name not in OPTIONS:
                raise UnknownOption(name, OPTIONS)
        given = {name: value for name, value in options.items() if value is not None}
        memory = given.get("min_free_memory")
        gpus, share, profile = _gpus(given.get("gpus", 1))
        return cls(
            gpus=gpus,
            share=share,
            profile=profile,
            devices=_devices(given["devices"]) if "devices" in given else (),
            min_free_memory_bytes=(
                None if memory is None else parse_bytes("min_free_memory", memory)
            ),
            model=_model(given.get("model")),
            wait_seconds=parse_seconds("wait", given.get("wait", default_wait)),
            identifiers=_one_of("identifiers", given.get("identifiers", "auto"), _IDENTIFIERS),
            topology=_one_of("topology", given.get("topology", "any"), _TOPOLOGY),
            cpu_affinity=_one_of("cpu_affinity", given.get("cpu_affinity", "none"), _AFFINITY),
            memory_cap=_memory_cap(given.get("memory_cap", "auto")),
            on_unavailable=_one_of("on_unavailable", given.get("on_unavailable", "cpu"), _FALLBACK),
        )

    @property
    def units(self) -> int:
        """The units of a device's range that each device of the request takes."""
        return DEVICE_UNITS if self.share is None else share_units(self.share)

    @property
    def amount(self) -> int | str:
        """The value of the option ``gpus``: ``2``, ``"all"``, ``"1/4"``, ``"mig:1g.18gb"``."""
        if self.share is not None:
            return str(self.share)
        return self.gpus if self.profile is None else f"mig:{self.profile}"

    def as_options(self) -> dict[str, object]:
        """Return the options that differ from asking for one GPU of any kind, JSON-ready."""
        options: dict[str, object] = {"gpus": self.amount}
        if self.devices:
            options["devices"] = list(self.devices)
        if self.min_free_memory_bytes is not None:
            options["min_free_memory"] = as_text(self.min_free_memory_bytes)
        if self.model is not None:
            options["model"] = self.model
        if self.topology != "any":
            options["topology"] = self.topology
        if self.cpu_affinity != "none":
            options["cpu_affinity"] = self.cpu_affinity
        if self.memory_cap != "auto":
            cap = self.memory_cap
            options["memory_cap"] = cap if isinstance(cap, str) else as_text(cap)
        return options

    def in_words(self) -> str:
        """Return the request as a person would say it: ``"2 GPUs of model H200"``."""
        words = self.amount_in_words()
        if self.topology == "require" and self.gpus != 1:
            words += " joined by NVLink"
        if self.model is not None:
            words += f" of model {self.model}"
        if self.devices:
            word = "device" if len(self.devices) == 1 else "devices"
            words += f" out of {word} {', '.join(self.devices)}"
        if self.min_free_memory_bytes is not None:
            words += f" with {in_gib(self.min_free_memory_bytes)} GiB free"
        return words

    def amount_in_words(self) -> str:
        """Return how much is asked for: ``"2 GPUs"``, ``"¼ GPU"``, ``"1 MIG device 1g.18gb"``."""
        if self.share is not None:
            return f"{fraction_words(self.share)} GPU"
        if self.profile is not None:
            return f"1 MIG device {self.profile}"
        return "all GPUs" if self.gpus == "all" else in_words(self.gpus)


_IDENTIFIERS: tuple[Identifiers, ...] = ("auto", "index", "uuid")
_FALLBACK: tuple[OnUnavailable, ...] = ("cpu", "wait", "error")
_TOPOLOGY: tuple[TopologyWish, ...] = ("any", "prefer", "require")
_AFFINITY: tuple[CPUAffinity, ...] = ("none", "closest")
_COUNT = (
    'a number of GPUs: 0, 1, 2, … or "all"; a share of one, such as "1/4"; '
    'or a MIG profile, such as "mig:1g.18gb"'
)
_PART = 'a share above 0 and at most 1, such as "1/4"'



def _gpus(given: object) -> tuple[int | Literal["all"], Fraction | None, str | None]:
    """Return count, share and MIG profile, as a request has them."""
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 10**9:
        return given, None, None
    if isinstance(given, str):
        # "¼" becomes "1⁄4", with the fraction slash of its own.
        text = given.strip()
        if not text.isascii():
            import unicodedata  # noqa: PLC0415 - hardly anybody writes it so

            plain = unicodedata.normalize("NFKC", text).replace("\N{FRACTION SLASH}", "/")
            text = plain.strip() if "/" in plain else text
        if text == "all":
            return "all", None, None
        if _NUMBER.fullmatch(text) and text.isascii():
            return int(text), None, None
        share = _SHARE.fullmatch(text)
        if share:
            return 1, _share(given, int(share[1]), int(share[2])), None
        if text.startswith("mig:"):
            profile = text.removeprefix("mig:").strip().lower()
            if not _PROFILE.fullmatch(profile):
                raise RequestError("gpus", given, 'a MIG profile, such as "mig:1g.18gb"')
            return 1, None, profile
    raise RequestError("gpus", given, _COUNT)


def _share(given: str, part: int, whole: int) -> Fraction | None:
    """Return a share below 1, None for the whole."""
    from fractions import Fraction  # noqa: PLC0415 - readers have to be quick, and rarely need it

    if not 0 < part <= whole:
        raise RequestError("gpus", given, _PART)
    share = Fraction(part, whole)
    if share_units(share) == 0:
        raise RequestError("gpus", given, f"{_PART}: the least is 1/{DEVICE_UNITS}")
    return None if share == 1 else share


def _memory_cap(given: object) -> MemoryCap:
    if given in ("auto", "none"):
        return "auto" if given == "auto" else "none"
    number = parse_bytes("memory_cap", given)
    if number == 0:
        raise RequestError("memory_cap", given, 'auto, none, or an amount such as "10GiB"')
    return number


def _devices(given: object) -> tuple[str, ...]:
    accepted = "a list of physical indices or UUIDs, each once"
    items = given.split(",") if isinstance(given, str) else given
    if isinstance(items, int) and not isinstance(items, bool):
        items = (items,)
    if not isinstance(items, (list, tuple)) or not items:
        raise RequestError("devices", given, accepted)
    names = []
    for item in items:
        if isinstance(item, bool) or not isinstance(item, (int, str)):
            raise RequestError("devices", given, accepted)
        text = str(item).strip()
        if not text.isprintable():
            raise RequestError("devices", given, accepted)
        is_index = _NUMBER.fullmatch(text) is not None
        if not is_index and not text.upper().startswith(("GPU-", "MIG-")):
            raise RequestError("devices", given, accepted)
        names.append(str(int(text)) if is_index else text)
    if len(set(names)) != len(names):
        raise RequestError("devices", given, accepted)
    return tuple(names)


def _model(given: object) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str) or not given.strip() or not given.isprintable():
        raise RequestError("model", given, 'a part of a model\'s name, such as "H200"')
    return given.strip()


def _one_of(option: str, given: object, allowed: tuple[_Word, ...]) -> _Word:
    for word in allowed:
        if given == word:
            return word
    raise RequestError(option, given, f"one of {', '.join(map(str, allowed))}")
