"""Devices out of service: what a hold is, how its file reads, and which device a name means. Pure.

Here everything in the file has to be right: it is written by ``jupyter gpu hold`` alone, and half
of a list of holds would give out what somebody has taken out of service.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.errors import UsageError
from jupyter_gpu.core.leases import clean

HOLDS_SIZE_LIMIT = 256 * 1024
REASON_LENGTH = 200
_MALFORMED = "not a list of holds"


@dataclass(frozen=True, slots=True)
class Hold:
    """One device that is out of service: nothing new is granted on it.

    ``index`` is the physical index that it had then, ``by`` the user who did it. ``since`` is
    ISO 8601 in the time zone of the machine, which is the time that everybody is shown.
    """

    uuid: str
    index: int | None
    reason: str
    by: str | None
    since: str

    @property
    def words(self) -> str:
        """Return ``"on hold since 2026-12-01 09:12 by root: fan"``."""
        then = datetime.fromisoformat(self.since)
        by = "" if self.by is None else f" by {self.by}"
        return f"on hold since {then:%Y-%m-%d %H:%M}{by}: {self.reason}"

    def as_json(self) -> dict[str, object]:
        """Return the hold for a program, its time in UTC."""
        then = datetime.fromisoformat(self.since).astimezone(timezone.utc)
        return {
            "uuid": self.uuid,
            "index": self.index,
            "reason": self.reason,
            "by": self.by,
            "since": then.isoformat(timespec="seconds"),
        }


@dataclass(frozen=True, slots=True)
class Holds:
    """Every hold of a place; ``problem`` says in a sentence why its file is not believed."""

    entries: tuple[Hold, ...] = ()
    problem: str | None = None

    def on(self, uuid: str | None) -> Hold | None:
        """Return the hold on exactly this device, or None."""
        return next((hold for hold in self.entries if hold.uuid == uuid), None)

    def holding(self, device: Device) -> Hold | None:
        """Return the hold that keeps a device out of service: its own, or its GPU's."""
        own = self.on(device.uuid)
        return own if own is not None or device.parent is None else self.on(device.parent)

    def changed(self, new: Iterable[Hold]) -> Holds:
        """Return these with others; one on the same device takes the place of what was there."""
        by_uuid = {hold.uuid: hold for hold in self.entries}
        by_uuid.update((hold.uuid, hold) for hold in new)
        return Holds(tuple(by_uuid.values()))

    def without(self, gone: Iterable[Hold]) -> Holds:
        """Return these without some."""
        uuids = {hold.uuid for hold in gone}
        return Holds(tuple(hold for hold in self.entries if hold.uuid not in uuids))

    def to_json(self) -> str:
        """Return the text of their file."""
        rows = [{**hold.as_json(), "since": hold.since} for hold in self.entries]
        return json.dumps({"schema": 1, "holds": rows}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Holds:
        """Read the text of their file.

        Raises
        ------
        ValueError
            When any part of it is not as it should be.
        """
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("schema") != 1:
            raise ValueError(_MALFORMED)
        rows = data.get("holds")
        if not isinstance(rows, list):
            raise ValueError(_MALFORMED)  # noqa: TRY004 - one error for all that it can be
        return cls(tuple(map(_hold, rows)))


def _hold(row: object) -> Hold:
    fields = row if isinstance(row, Mapping) else {}
    uuid, reason, since = (_text(fields.get(name)) for name in ("uuid", "reason", "since"))
    index = fields.get("index")
    by = None if fields.get("by") is None else _text(fields.get("by"))
    if not uuid or isinstance(index, bool) or not isinstance(index, (int, type(None))):
        raise ValueError(_MALFORMED)
    moment = datetime.fromisoformat(since)
    if moment.tzinfo is None:
        raise ValueError(_MALFORMED)
    try:
        moment.astimezone(timezone.utc)
    except OverflowError as error:
        raise ValueError(_MALFORMED) from error
    return Hold(uuid, index, reason, by, since)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(_MALFORMED)  # noqa: TRY004 - one error for all that it can be
    return clean(value)


def reason_of(given: str | None) -> str:
    """Return a reason as others read it: on one line, not endless.

    Raises
    ------
    UsageError
        When there is none.
    """
    words = clean(" ".join((given or "").split()))
    if not words:
        raise UsageError(
            "A hold needs a reason, which everybody is shown:\n"
            '  jupyter gpu hold 3 --reason "fan is loud"'
        )
    return words if len(words) <= REASON_LENGTH else f"{words[: REASON_LENGTH - 1]}…"


def device_meant(name: str, inventory: Inventory) -> Device:
    """Return the device that a physical index, a UUID or the start of one means.

    An index is a GPU's; a MIG device has only its UUID.

    Raises
    ------
    UsageError
        When there is no such device or there are several, with what there is.
    """
    found = [
        device for device in inventory.devices if _means(name, device.index, device.uuid, device)
    ]
    if len(found) == 1 and found[0].uuid is not None:
        return found[0]
    shown = clean(name)
    if len(found) == 1:
        raise UsageError(
            f"GPU {found[0].index} is so lost that it has no UUID: no hold can name it."
        )
    if found:
        raise UsageError(f"{shown} means several devices:\n{_listed(found)}")
    if not inventory.devices:
        why = f" {clean(inventory.problem)}" if inventory.problem else ""
        raise UsageError(f"There is no device {shown}: no GPU can be seen here.{why}")
    raise UsageError(f"There is no device {shown}. There are:\n{_listed(inventory.devices)}")


def hold_meant(name: str, holds: Holds, inventory: Inventory) -> Hold:
    """Return the hold that a name means, also one on a device that the machine no longer has.

    Raises
    ------
    UsageError
        When that device is not on hold, with what is.
    """
    found = []
    for hold in holds.entries:
        device = inventory.find(hold.uuid)
        # Indices change from one start of the machine to the next: today's counts.
        index = hold.index if device is None else device.index
        if _means(name, index, hold.uuid, device):
            found.append(hold)
    if len(found) == 1:
        return found[0]
    shown = clean(name)
    if found:
        lines = "\n".join(f"  {hold.uuid}" for hold in found)
        raise UsageError(f"{shown} means several devices:\n{lines}")
    if not holds.entries:
        raise UsageError(f"{shown} is not on hold, nor is any other device.")
    lines = "\n".join(f"  {held_name(hold, inventory)}  {hold.words}" for hold in holds.entries)
    raise UsageError(f"{shown} is not on hold. These are:\n{lines}")


def _means(name: str, index: int | None, uuid: str | None, device: Device | None) -> bool:
    if name.isascii() and name.isdigit():
        # A number of thousands of digits is never converted: Python refuses that.
        is_part = uuid is not None and uuid.startswith("MIG-")
        part = is_part if device is None else device.kind == "mig"
        return not part and index is not None and str(index) == (name.lstrip("0") or "0")
    if uuid is None or not name.upper().startswith(("GPU-", "MIG-")):
        return False
    return uuid.lower().startswith(name.lower())


def device_name(device: Device) -> str:
    """Return ``"GPU 3"``, or for a part of one ``"MIG device MIG-… of GPU 3"``."""
    if device.kind == "gpu":
        return f"GPU {device.index}"
    return f"MIG device {clean(device.uuid or '–')} of GPU {device.index}"


def held_name(hold: Hold, inventory: Inventory) -> str:
    """Return the name of the device on hold, of one that is not here by its UUID."""
    device = inventory.find(hold.uuid)
    return f"device {hold.uuid}" if device is None else device_name(device)


def _listed(devices: Iterable[Device]) -> str:
    rows = []
    for device in devices:
        uuid = "no UUID" if device.uuid is None else clean(device.uuid)
        rows.append(f"  {device.index}  {uuid}" if device.kind == "gpu" else f"     {uuid}")
    return "\n".join(rows)
