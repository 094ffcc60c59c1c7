"""What a kernel asks for: the options of interface.md, read strictly.

One reader serves the provisioner, the wrapper, the command line and Python, so that an option
means the same everywhere and nothing is ever silently ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from jupyter_gpu.core.errors import RequestError, UnknownOption
from jupyter_gpu.core.quantities import as_text, in_gib, in_words, parse_bytes, parse_seconds

Identifiers = Literal["auto", "index", "uuid"]
OnUnavailable = Literal["cpu", "wait", "error"]

OPTIONS = (
    "gpus",
    "devices",
    "min_free_memory",
    "model",
    "wait",
    "identifiers",
    "on_unavailable",
)
# Part of the fixed interface, but of a later release: refused by name until then.
PLANNED = ("topology", "cpu_affinity", "memory_cap")

_Word = TypeVar("_Word", bound=str)

_SHARE = re.compile(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*")
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Request:
    """What a kernel asks for.

    ``gpus`` is a count or ``"all"``; ``devices`` are physical indices or UUIDs to choose from, as
    text, empty for any; times are in seconds and memory in bytes.
    """

    gpus: int | Literal["all"] = 1
    devices: tuple[str, ...] = ()
    min_free_memory_bytes: int | None = None
    model: str | None = None
    wait_seconds: float = 8.0
    identifiers: Identifiers = "auto"
    on_unavailable: OnUnavailable = "cpu"

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
                raise UnknownOption(name, OPTIONS, planned=name in PLANNED)
        given = {name: value for name, value in options.items() if value is not None}
        memory = given.get("min_free_memory")
        return cls(
            gpus=_gpus(given.get("gpus", 1)),
            devices=_devices(given["devices"]) if "devices" in given else (),
            min_free_memory_bytes=(
                None if memory is None else parse_bytes("min_free_memory", memory)
            ),
            model=_model(given.get("model")),
            wait_seconds=parse_seconds("wait", given.get("wait", default_wait)),
            identifiers=_one_of("identifiers", given.get("identifiers", "auto"), _IDENTIFIERS),
            on_unavailable=_one_of("on_unavailable", given.get("on_unavailable", "cpu"), _FALLBACK),
        )

    def as_options(self) -> dict[str, object]:
        """Return the options that differ from asking for one GPU of any kind, JSON-ready."""
        options: dict[str, object] = {"gpus": self.gpus}
        if self.devices:
            options["devices"] = list(self.devices)
        if self.min_free_memory_bytes is not None:
            options["min_free_memory"] = as_text(self.min_free_memory_bytes)
        if self.model is not None:
            options["model"] = self.model
        return options

    def in_words(self) -> str:
        """Return the request as a person would say it: ``"2 GPUs of model H200"``."""
        words = "all GPUs" if self.gpus == "all" else in_words(self.gpus)
        if self.model is not None:
            words += f" of model {self.model}"
        if self.devices:
            word = "device" if len(self.devices) == 1 else "devices"
            words += f" out of {word} {', '.join(self.devices)}"
        if self.min_free_memory_bytes is not None:
            words += f" with {in_gib(self.min_free_memory_bytes)} GiB free"
        return words


_IDENTIFIERS: tuple[Identifiers, ...] = ("auto", "index", "uuid")
_FALLBACK: tuple[OnUnavailable, ...] = ("cpu", "wait", "error")
_COUNT = 'a number of GPUs: 0, 1, 2, … or "all"'


def _gpus(given: object) -> int | Literal["all"]:
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 10**9:
        return given
    if isinstance(given, str):
        text = given.strip()
        if text == "all":
            return "all"
        if _NUMBER.fullmatch(text):
            return int(text)
        share = _SHARE.fullmatch(text)
        if share and 0 < int(share[1]) <= int(share[2]):
            raise RequestError("gpus", given, "built yet: this release leases whole GPUs only")
        if text.startswith("mig:") and len(text) > len("mig:"):
            raise RequestError("gpus", given, "built yet: this release leases whole GPUs only")
    raise RequestError("gpus", given, _COUNT)


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
