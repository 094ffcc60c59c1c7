"""What the site's rules say, and what that means for one person: values, words, JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Holdings
from jupyter_gpu.core.policy import named
from jupyter_gpu.core.quantities import fraction_words, in_words
from jupyter_gpu.core.rivals import NOT_HELD

if TYPE_CHECKING:
    from fractions import Fraction

    from jupyter_gpu.core.rules import Rules

_NAMES_SHOWN = 4
_LARGEST_DENOMINATOR = 100


@dataclass(frozen=True, slots=True)
class Limit:
    """How many devices one user may hold at once, shares as their part; None lifts the limit."""

    count: Fraction | None


@dataclass(frozen=True, slots=True)
class Entry:
    """What the file says for everybody, one group or one user; None is "not said here"."""

    limit: Limit | None = None
    default_wait_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices for some: physical indices, and UUIDs or their start; with users, groups or both."""

    devices: tuple[int | str, ...]
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def covers(self, device: Device) -> bool:
        """Return whether a device is reserved by this: itself, or as a part of its GPU."""
        return any(means(name, device) for name in self.devices)

    def opens_to(self, user: str, groups: Iterable[str]) -> bool:
        """Return whether a person is among those whom it names."""
        return user in self.users or not set(self.groups).isdisjoint(groups)


def means(name: int | str, device: Device) -> bool:
    """Return whether a name in a reservation means a device, or the GPU that it is a part of."""
    if isinstance(name, int):
        return device.index == name  # a MIG device's index is its GPU's
    parent = (device.parent or "").lower()
    return named(device, name) or parent.startswith(name.lower())


@dataclass(frozen=True, slots=True)
class PersonRules:
    """What the rules mean for one person.

    ``limit_words`` names the rule that limits them, None where nothing does; ``default_wait`` is in
    seconds, None where the rules say nothing.
    """

    user: str
    groups: tuple[str, ...] = ()
    max_devices: Fraction | None = None
    limit_words: str | None = None
    default_wait: float | None = None
    reserved: tuple[Reservation, ...] = ()

    def reserved_against(self, device: Device) -> str | None:
        """Return why this person may not have a device: ``"reserved for alice and group staff"``.

        None when they may. A device in several tables is open to those of any of them.
        """
        found = [one for one in self.reserved if one.covers(device)]
        if not found or any(one.opens_to(self.user, self.groups) for one in found):
            return None
        users = dict.fromkeys(name for one in found for name in one.users)
        groups = dict.fromkeys(name for one in found for name in one.groups)
        names = [*users, *(f"group {name}" for name in groups)]
        if len(names) > _NAMES_SHOWN:
            names[_NAMES_SHOWN - 1 :] = [f"{len(names) - _NAMES_SHOWN + 1} more"]
        *first, last = names
        return f"reserved for {', '.join(first)} and {last}" if first else f"reserved for {last}"


def held_by(holdings: Holdings, user: str) -> Fraction:
    """Return how many devices a user holds now, shares as their part.

    A lease nested in another uses that one's devices and counts for nothing. Nobody holds more than
    all of a device: while a kernel hands its devices on, two leases describe them.
    """
    from fractions import Fraction  # noqa: PLC0415 - readers have to be quick

    units: dict[str, int] = {}
    for lease in holdings.leases:
        if lease.user == user and not lease.record.ancestors and lease.note != NOT_HELD:
            for uuid in dict.fromkeys(lease.record.uuids):
                units[uuid] = min(units.get(uuid, 0) + lease.record.units, DEVICE_UNITS)
    return Fraction(sum(units.values()), DEVICE_UNITS)


def over_limit(rules: PersonRules, held: Fraction, wanted: Fraction) -> str | None:
    """Return the sentence of a refusal when a person would hold too much, None when they may.

    Parameters
    ----------
    rules
        Of the person who asks.
    held, wanted
        How many devices they hold, and ask for beside these, shares as their part.
    """
    most = rules.max_devices
    if most is None or wanted <= 0 or held + wanted <= most:
        return None
    limit = f"the limit is {_amount(most)}: {rules.limit_words}."
    if held <= 0:
        return f"This asks for {number_words(wanted)}, and {limit}"
    if held >= most:
        return f"You hold {number_words(held)}, and {limit}"
    return f"You hold {number_words(held)}, this asks for {_amount(wanted)} more, and {limit}"


def can_never_have(rules: PersonRules, wanted: Fraction) -> bool:
    """Return whether a person's limit is below what they ask for, whatever they hold."""
    return rules.max_devices is not None and wanted > 0 and rules.max_devices < wanted


def number_words(count: Fraction) -> str:
    """Return ``"2 devices"``, ``"¼ device"``, ``"1¾ devices"``, ``"0.06 devices"``."""
    if count.denominator == 1:
        return in_words(count.numerator, "device")
    amount = _amount(count)
    return f"{amount} device" if count < 1 and "." not in amount else f"{amount} devices"


def _amount(count: Fraction) -> str:
    whole, part = divmod(count, 1)
    if not part:
        return str(whole)
    sign = fraction_words(part)
    if len(sign) == 1:
        return f"{whole}{sign}" if whole else sign
    small = not whole and part.denominator <= _LARGEST_DENOMINATOR
    return sign if small else f"{float(count):.2f}"


def written(count: Fraction) -> str:
    """Return a number of devices much as it stands in the file."""
    short = count.denominator <= _LARGEST_DENOMINATOR
    return str(count) if short else f"{float(count):g}"


def rules_answer(
    rules: Rules, person: PersonRules, held: Fraction | None = None
) -> dict[str, object]:
    """Return the rules that concern a person, JSON-ready.

    ``held`` is how many devices they hold now, None where nobody has counted.
    """
    most = person.max_devices
    return {
        "source": rules.source,
        "max_devices_per_user": None if most is None else float(most),
        "held": None if held is None else float(held),
        "show_notebooks": rules.show_notebooks,
        "default_wait_seconds": person.default_wait,
        "idle_warning_seconds": rules.idle_warning_seconds,
        "idle_shutdown_seconds": rules.idle_shutdown_seconds,
        "mig_devices_per_kernel": rules.mig_devices_per_kernel,
        "reserved": [
            {
                "devices": list(one.devices),
                "users": list(one.users),
                "groups": list(one.groups),
            }
            for one in rules.reserved
        ],
    }
