"""What the CUDA driver makes of ``CUDA_VISIBLE_DEVICES``, without asking the driver.

The driver reads the variable once, at ``cuInit``, by rules of its own that no framework quite
repeats. Whoever must know before that moment (the launcher, ``jupyter gpu map``, the notes on a
value) asks here. The rules were measured on two H200s, driver 580.159.04; the measurements are the
rows of ``tests/data/driver_visibility.json``. What is documented but not measured says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jupyter_gpu.core.notes import value_notes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyter_gpu.core.devices import Device, Inventory

CUDA_SUCCESS = 0
CUDA_ERROR_NO_DEVICE = 100
CUDA_ERROR_INVALID_DEVICE = 101

End = Literal[
    "blank",
    "no number",
    "negative",
    "overflow",
    "out of range",
    "other kind",
    "unknown uuid",
    "ambiguous uuid",
    "old mig form",
    "mig mode",
    "problem",
]

_UUID_DIGITS = 32
_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")
_LARGEST = 2**64 - 1
_PREFIXES = ("GPU-", "MIG-")
_OLD_MIG_FORM = "MIG-GPU-"


@dataclass(frozen=True, slots=True)
class VisibleDevice:
    """One device that CUDA shows: its visible ordinal, its physical index and its UUID."""

    ordinal: int
    index: int
    uuid: str


@dataclass(frozen=True, slots=True)
class Visible:
    """What the driver makes of one value on one machine.

    ``value`` is None where the variable is unset. ``cuinit`` is what ``cuInit`` returns: 0, 100
    (no device) or 101 (a device twice), or None where there is no machine to ask.
    """

    value: str | None
    devices: tuple[VisibleDevice, ...]
    cuinit: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the list: its text, and the device it names or why it ends the list.

    ``number`` is the index that CUDA reads in an integer entry; ``wrapped`` says that the digits
    spell another number, which does not fit 32 bits. ``candidates`` are the devices that a text in
    UUID form fits without naming one: several, or one that CUDA does not offer.
    """

    text: str
    device: Device | None = None
    end: End | None = None
    number: int | None = None
    wrapped: bool = False
    candidates: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """A value, read entry by entry as the driver reads it.

    ``entries`` name a device each and count. ``ended_by`` is the entry that ends the list, and
    ``unread`` the texts after it. ``twice`` holds the two entries that name the same device.
    """

    entries: tuple[Entry, ...]
    ended_by: Entry | None
    unread: tuple[str, ...]
    twice: tuple[Entry, Entry] | None

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that the list names, in its order."""
        return tuple(entry.device for entry in self.entries if entry.device is not None)

    @property
    def certain(self) -> tuple[Device, ...]:
        """Those of them that a process gets for certain: of several MIG devices only the first."""
        return _certain(self.devices)


def visible(
    value: str | None, inventory: Inventory, *, environment: Mapping[str, str] | None = None
) -> Visible:
    """Return what the CUDA driver makes of ``CUDA_VISIBLE_DEVICES=value`` on this machine.

    Parameters
    ----------
    value
        The variable's value; None where it is unset, which means every device.
    inventory
        The machine. With source ``none`` there is no machine to ask: no device, ``cuinit`` None.
    environment
        The variables around it, for the notes only (``CUDA_DEVICE_ORDER``, misspelt names, a
        scheduler's ids). Without it the notes say nothing about them.

    Returns
    -------
    Visible
        Integers are read in the order of ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. Of several MIG devices
        only the first is listed: NVIDIA's documents disagree on how many one process gets, and
        the first is all they agree on. ``read`` gives every device that the list names.
    """
    reading = None if value is None else read(value, inventory)
    notes = value_notes(value, reading, inventory, environment)
    if inventory.source == "none":
        return Visible(value, (), None, notes)
    if reading is not None and reading.twice is not None:
        return Visible(value, (), CUDA_ERROR_INVALID_DEVICE, notes)
    shown = enumerable(inventory) if reading is None else reading.certain
    devices = tuple(
        VisibleDevice(ordinal, device.index, device.uuid)
        for ordinal, device in enumerate(shown)
        if device.uuid is not None
    )
    return Visible(value, devices, CUDA_SUCCESS if devices else CUDA_ERROR_NO_DEVICE, notes)


def enumerable(inventory: Inventory) -> tuple[Device, ...]:
    """Return the devices that CUDA numbers 0, 1, … when nothing limits it.

    These are the whole GPUs in physical order. Left out are GPUs in MIG mode, which CUDA offers
    only in parts, and GPUs with a problem: one that fell off the bus, needs a reset, or whose
    device file a cgroup refuses cannot be opened, and ``cuInit`` goes on without it, so that the
    GPUs behind it move up. Where no whole GPU is left, CUDA takes the first MIG device (NVIDIA's
    MIG guide; not measured). An exclusive GPU stays: it is shown, and opening it fails later.
    """
    whole = _usable(inventory, "gpu")
    return whole or _usable(inventory, "mig")[:1]


def read(value: str, inventory: Inventory) -> Reading:
    """Return how the driver reads a value, entry by entry, up to the first invalid one.

    A list keeps the kind of its first entry, integers or UUIDs. A device that is named twice makes
    ``cuInit`` fail; an invalid entry before the second name hides it.
    """
    texts = value.split(",")
    by_uuid = texts[0].startswith(_PREFIXES)
    entries: list[Entry] = []
    first_naming: dict[str | None, Entry] = {}
    twice: tuple[Entry, Entry] | None = None
    for position, text in enumerate(texts):
        entry = _read_uuid(text, inventory) if by_uuid else _read_integer(text, inventory)
        if entry.device is None:
            return Reading(tuple(entries), entry, tuple(texts[position + 1 :]), twice)
        earlier = first_naming.setdefault(entry.device.uuid, entry)
        if earlier is not entry and twice is None:
            twice = (earlier, entry)
        entries.append(entry)
    return Reading(tuple(entries), None, (), twice)


def _read_integer(text: str, inventory: Inventory) -> Entry:
    """Read an entry as C's ``strtoul`` and a cast to 32 bits do: blanks, one sign, digits.

    The rest is ignored. Measured: 4294967297 is 1, 9223372036854775808 is 0, and a number beyond
    64 bits ends the list.
    """
    match = _INTEGER.match(text)
    if match is None:
        return Entry(text, end=_end_of_other_text(text))
    # A number of thousands of digits is never converted: Python refuses that.
    digits = match[2].lstrip("0") or "0"
    if len(digits) > len(str(_LARGEST)) or int(digits) > _LARGEST:
        return Entry(text, end="overflow")
    negative = match[1] == "-" and digits != "0"
    number = ((-int(digits) if negative else int(digits)) + 2**31) % 2**32 - 2**31
    wrapped = str(abs(number)) != digits or (negative and number >= 0)
    numbered = enumerable(inventory)
    if not 0 <= number < len(numbered):
        end: End = "negative" if negative else "out of range"
        return Entry(text, end=end, number=number, wrapped=wrapped)
    return Entry(text, device=numbered[number], number=number, wrapped=wrapped)


def _end_of_other_text(text: str) -> End:
    """Tell a blank, an entry of the other kind, and anything else apart."""
    if not text.strip():
        return "blank"
    other = text.lstrip().startswith(_PREFIXES) or _INTEGER.match(text)
    return "other kind" if other else "no number"


def _read_uuid(text: str, inventory: Inventory) -> Entry:
    """Read an entry as a UUID: exact prefix, hexadecimal digits in either case, no dashes.

    Text after a whole UUID is ignored. A unique beginning, with nothing behind it, names a whole
    GPU (both measured); a MIG device is accepted only in full, since nobody has measured whether
    its beginning is enough. ``MIG-`` followed by all of a whole GPU's digits names that GPU
    (measured).
    """
    if not text.startswith(_PREFIXES):
        return Entry(text, end=_end_of_other_text(text))
    if text.startswith(_OLD_MIG_FORM):
        return _read_old_form(text, inventory)
    gpus, migs = _usable(inventory, "gpu"), _usable(inventory, "mig")
    if text.startswith("MIG-"):
        found = _in_full(text, migs) or _in_full(text, gpus)
    else:
        found = _in_full(text, gpus) or _beginning_with(text, gpus)
    if len(found) == 1:
        return Entry(text, device=found[0])
    # A UUID of something that is here and cannot be used differs from one that is not here.
    found = found or _in_full(text, inventory.devices) or _beginning_with(text, inventory.gpus)
    if len(found) != 1:
        return Entry(text, end="ambiguous uuid" if found else "unknown uuid", candidates=found)
    return Entry(text, end="mig mode" if found[0].mig_mode else "problem", candidates=found)


def _read_old_form(text: str, inventory: Inventory) -> Entry:
    """Read ``MIG-GPU-<uuid>/<gi>/<ci>``: the parent's UUID and the numbers of the two instances.

    Where the inventory does not know the numbers, the GPUs in MIG mode that the UUID fits are the
    candidates; without one the driver finds no device (measured on GPUs that are not in MIG mode).
    """
    parent, _, numbers = text[len("MIG-") :].partition("/")
    parents = _in_full(parent, tuple(gpu for gpu in inventory.gpus if gpu.mig_mode))
    instances = re.match(r"([0-9]{1,9})/([0-9]{1,9})", numbers)
    for mig in _usable(inventory, "mig") if instances and len(parents) == 1 else ():
        named = (mig.parent, str(mig.gpu_instance), str(mig.compute_instance))
        if instances and named == (parents[0].uuid, instances[1], instances[2]):
            return Entry(text, device=mig)
    return Entry(text, end="old mig form", candidates=parents)


def _in_full(text: str, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    digits = _uuid_digits(text)
    exact = tuple(device for device in devices if device.uuid == text)
    return exact or tuple(
        device for device in devices if digits and _uuid_digits(device.uuid or "") == digits
    )


def _beginning_with(text: str, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    # Dashes do not count and digits may be missing: GPU-- names the only GPU, GPU- none (measured).
    if re.fullmatch(r"[0-9A-Fa-f-]+", text[len("GPU-") :]) is None:
        return ()
    digits = _uuid_digits(text)
    return tuple(
        device for device in devices if _uuid_digits(device.uuid or "").startswith(digits)
    )


def _uuid_digits(text: str) -> str:
    """Return the hexadecimal digits after the prefix, in lower case and without dashes.

    They end at the first other character, and at 32: what follows a whole UUID is ignored.
    """
    match = re.match(r"[0-9A-Fa-f-]*", text[len("GPU-") :])
    digits = match[0] if match else ""
    return digits.replace("-", "").lower()[:_UUID_DIGITS]


def _usable(inventory: Inventory, kind: Literal["gpu", "mig"]) -> tuple[Device, ...]:
    return tuple(
        device
        for device in inventory.devices
        if device.kind == kind
        and device.uuid is not None
        and device.problem is None
        and not (kind == "gpu" and device.mig_mode)
    )


def _certain(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Keep what every document agrees on: one MIG device, alone; or GPUs up to the first of them.

    NVIDIA says "one compute instance per process", and from driver 570 "one per GPU instance";
    GPUs and MIG devices in one list are described nowhere.
    """
    if devices and devices[0].kind == "mig":
        return devices[:1]
    return tuple(device for device in devices if device.kind == "gpu")
