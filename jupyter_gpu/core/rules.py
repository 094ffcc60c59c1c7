"""The site's rules: who may have how much, which devices are reserved, who reads whose names. Pure.

Everything in the file has to be right: a rule that is passed over because of a slip would give out
what its administrator meant to keep. The rules bind programs that ask through this package; they
run as the user, so nothing here is a protection against that user.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.errors import GPUError, RequestError
from jupyter_gpu.core.leases import NOTEBOOKS, Notebooks, clean
from jupyter_gpu.core.quantities import parse_seconds
from jupyter_gpu.core.rules_view import (
    Entry,
    Limit,
    PersonRules,
    Reservation,
    can_never_have,
    held_by,
    means,
    number_words,
    over_limit,
    rules_answer,
    written,
)
from jupyter_gpu.core.spelling import did_you_mean

if TYPE_CHECKING:
    from fractions import Fraction

# What callers find here, though the half that is about one person has a module of its own.
__all__ = [
    "Entry",
    "Limit",
    "PersonRules",
    "Reservation",
    "Rules",
    "RulesError",
    "can_never_have",
    "held_by",
    "number_words",
    "over_limit",
    "parse_rules",
    "rules_answer",
]

_ENTRY_KEYS = ("max_devices_per_user", "default_wait")
_GENERAL_KEYS = (
    *_ENTRY_KEYS,
    "show_notebooks",
    "idle_warning",
    "idle_shutdown",
    "mig_devices_per_kernel",
    "groups",
    "users",
    "reserved",
)
_RESERVED_KEYS = ("devices", "users", "groups")

_MOST = 10**6
_LONGEST_NUMBER = 10**20
_NAME_LENGTH = 256
_SHOWN_LENGTH = 40
_RATIO = re.compile(r"([0-9]{1,9})(?:\s*/\s*([0-9]{1,9}))?")
_BARE = re.compile(r"[A-Za-z0-9_-]{1,60}")
# A UUID or its start; the older form of a MIG device's name has two numbers behind it.
_DEVICE = re.compile(r"(?:GPU-|MIG-)[!-~]{1,200}", re.IGNORECASE)


class RulesError(GPUError, ValueError):
    """The file of rules cannot be used, so nothing is granted; it says where and why.

    ``table`` is the part of the file as it is written there, ``line`` where it stands.
    """

    def __init__(
        self, source: str, found: str, *, table: str | None = None, line: int | None = None
    ) -> None:
        self.source, self.found, self.table, self.line = source, found, table, line
        where = [clean(source), None if line is None else f"line {line}", table]
        super().__init__(
            "No GPU is granted: the file of rules cannot be used.\n"
            f"  {', '.join(part for part in where if part is not None)}\n"
            f"{_wrapped(found)}\n"
            "Tell the administrator of this machine, who can mend it."
        )

    def at_line(self, line: int | None) -> RulesError:
        """Return the same error with the line where it stands."""
        return RulesError(self.source, self.found, table=self.table, line=line)


def _wrapped(text: str) -> str:
    """Return text indented and in short lines; a line that is indented already is a command."""
    import textwrap  # noqa: PLC0415 - only after a mistake

    wrapper = textwrap.TextWrapper(76, break_long_words=False, break_on_hyphens=False)
    lines = (one if one.startswith(" ") else wrapper.fill(one) for one in text.split("\n"))
    return textwrap.indent("\n".join(lines), "  ")


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a site; this class without arguments is a site without rules.

    ``source`` is the path of their file. ``groups`` and ``users`` are entries by name, in the order
    of the file.
    """

    source: str | None = None
    general: Entry = field(default_factory=Entry)
    groups: tuple[tuple[str, Entry], ...] = ()
    users: tuple[tuple[str, Entry], ...] = ()
    show_notebooks: Notebooks = "all"
    idle_warning_seconds: float | None = None
    idle_shutdown_seconds: float | None = None
    mig_devices_per_kernel: int = 1
    reserved: tuple[Reservation, ...] = ()

    @property
    def limits_anyone(self) -> bool:
        """Whether there is a limit for anybody."""
        entries = [self.general, *(entry for _, entry in (*self.groups, *self.users))]
        return any(one.limit is not None and one.limit.count is not None for one in entries)

    def for_person(self, user: str, groups: tuple[str, ...]) -> PersonRules:
        """Return what the rules mean for a user with these groups.

        For each key the user's own entry counts, else the most generous of their groups' entries,
        else what the file says for everybody.
        """
        own = dict(self.users).get(user, Entry())
        theirs = [(name, entry) for name, entry in self.groups if name in groups]
        limit, words = self._limit(user, own, theirs)
        waits = [entry.default_wait_seconds for _, entry in theirs]
        longest = max((wait for wait in waits if wait is not None), default=None)
        said = (own.default_wait_seconds, longest, self.general.default_wait_seconds)
        wait = next((one for one in said if one is not None), None)
        return PersonRules(user, groups, limit, words, wait, self.reserved)

    def _limit(
        self, user: str, own: Entry, theirs: list[tuple[str, Entry]]
    ) -> tuple[Fraction | None, str | None]:
        by_group = [(entry.limit, f" for group {name}") for name, entry in theirs if entry.limit]
        by_group.sort(key=lambda one: _generosity(one[0]), reverse=True)
        said = [(own.limit, f" for {user}"), *by_group, (self.general.limit, "")]
        limit, whose = next(((one, words) for one, words in said if one is not None), (None, ""))
        if limit is None or limit.count is None:
            return None, None
        words = f"max_devices_per_user = {written(limit.count)}{whose} in {self.source}"
        return limit.count, words

    def reserved_in_vain(self, inventory: Inventory) -> tuple[str, ...]:
        """Return the names in reservations that mean no device of this machine, each once."""
        names = dict.fromkeys(name for one in self.reserved for name in one.devices)
        devices = inventory.devices
        return tuple(str(n) for n in names if not any(means(n, device) for device in devices))


def _generosity(limit: Limit) -> tuple[bool, Fraction | int]:
    return limit.count is None, 0 if limit.count is None else limit.count


def parse_rules(data: Mapping[str, object], source: str) -> Rules:
    """Read the rules out of the tables of their file.

    Parameters
    ----------
    data
        What a reader of TOML has made of the file.
    source
        The path of the file, for words about it.

    Raises
    ------
    RulesError
        For a key that does not exist and for a value that is not of its key's form.
    """
    top = _Table(source, None, data)
    top.require_known(_GENERAL_KEYS)
    return Rules(
        source=clean(source),
        general=top.entry(),
        groups=_entries(top, "groups"),
        users=_entries(top, "users"),
        show_notebooks=_show_notebooks(top),
        idle_warning_seconds=top.idle_seconds("idle_warning"),
        idle_shutdown_seconds=top.idle_seconds("idle_shutdown"),
        mig_devices_per_kernel=_mig_devices(top),
        reserved=_reserved(top),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of the file; ``name`` is its heading as it stands there, None for the top."""

    source: str
    name: str | None
    values: Mapping[str, object]

    def error(self, found: str) -> RulesError:
        return RulesError(self.source, found, table=self.name)

    def wrong(self, key: str, accepted: str) -> RulesError:
        return self.error(f"{_key(key)}: {_shown(self.values[key])} is not {accepted}.")

    def require_known(self, known: tuple[str, ...]) -> None:
        for key in self.values:
            if key in known:
                continue
            if self.name is not None and key in _GENERAL_KEYS:
                raise self.error(
                    f"{key} holds for everybody: it stands above the first line with a [table]."
                )
            near = did_you_mean(key, known)
            raise self.error(
                f"{_key(key)} is not a key here.{near}\nThe keys here: {', '.join(known)}."
            )

    def entry(self) -> Entry:
        wait = self.values.get("default_wait")
        accepted = 'a time such as "30s", "10m", "2h" or 0'
        seconds = None if wait is None else self._seconds("default_wait", accepted)
        return Entry(self._limit("max_devices_per_user"), seconds)

    def idle_seconds(self, key: str) -> float | None:
        if self.values.get(key) in (None, "none"):
            return None
        accepted = 'a time above 0 such as "30m" or "8h", or "none"'
        seconds = self._seconds(key, accepted)
        if seconds == 0:  # off, or at once? Ending kernels is not for guessing.
            raise self.wrong(key, accepted)
        return seconds

    def _seconds(self, key: str, accepted: str) -> float:
        given = self.values[key]
        try:
            return parse_seconds(key, given if isinstance(given, str) else _short(given))
        except RequestError:
            raise self.wrong(key, accepted) from None

    def _limit(self, key: str) -> Limit | None:
        given = self.values.get(key)
        if given is None:
            return None
        count = None if given == "none" else _number(given)
        if given != "none" and count is None:
            raise self.wrong(
                key, f'a number of devices from 0 to {_MOST}, such as 2, 0.5 or "1/2", nor "none"'
            )
        return Limit(count)

    def tables(self, key: str) -> Iterator[tuple[str, _Table]]:
        """Yield the tables in a table of tables, by name."""
        given = self.values.get(key, {})
        form = f"[{key}.NAME]"
        if not isinstance(given, Mapping):
            raise self.error(f"{key} is {_shown(given)}, where tables belong: write  {form}")
        for name, values in given.items():
            heading = f"[{key}.{_key(name)}]"
            if not isinstance(values, Mapping):
                raise self.error(
                    f"{key}.{_key(name)} is {_shown(values)}, where a table belongs: "
                    f"write  {heading}  and its keys below"
                )
            if not _is_name(name):
                raise self.error(f"{heading}: {_shown(name)} cannot be a name.")
            yield name, _Table(self.source, heading, values)


def _entries(top: _Table, key: str) -> tuple[tuple[str, Entry], ...]:
    entries = []
    for name, table in top.tables(key):
        table.require_known(_ENTRY_KEYS)
        entries.append((name, table.entry()))
    return tuple(entries)


def _show_notebooks(top: _Table) -> Notebooks:
    given = top.values.get("show_notebooks", "all")
    for word in NOTEBOOKS:
        if given == word:
            return word
    raise top.wrong("show_notebooks", f"one of {', '.join(NOTEBOOKS)}")


def _mig_devices(top: _Table) -> int:
    given = top.values.get("mig_devices_per_kernel", 1)
    if not isinstance(given, int) or isinstance(given, bool) or not 0 < given <= _MOST:
        raise top.wrong("mig_devices_per_kernel", f"a whole number from 1 to {_MOST}")
    return given


def _reserved(top: _Table) -> tuple[Reservation, ...]:
    given = top.values.get("reserved", [])
    if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        shown = "a list of other things" if isinstance(given, list) else _shown(given)
        raise top.error(f"reserved is {shown}, where tables belong: write  [[reserved]]")
    found = []
    for number, values in enumerate(given, start=1):
        table = _Table(top.source, f"[[reserved]] number {number}", values)
        table.require_known(_RESERVED_KEYS)
        devices = _devices(table)
        people = {key: _names(table, key) for key in ("users", "groups")}
        if not any(people.values()):
            raise table.error(
                "users or groups: one of them has to say who may have these devices.\n"
                "To take a device out of service, run  jupyter gpu hold"
            )
        found.append(Reservation(devices, people["users"], people["groups"]))
    return tuple(found)


def _names(table: _Table, key: str) -> tuple[str, ...]:
    given = table.values.get(key, [])
    if not isinstance(given, list):
        raise table.wrong(key, 'a list of names, such as ["alice"]')
    for name in given:
        if not isinstance(name, str) or not _is_name(name):
            raise table.error(f'{key}: {_shown(name)} is not a name, such as "alice".')
    return tuple(dict.fromkeys(given))


def _devices(table: _Table) -> tuple[int | str, ...]:
    given = table.values.get("devices")
    if given is None:
        raise table.error("devices is missing: it says which devices these are, such as [6, 7].")
    if not isinstance(given, list) or not given:
        raise table.wrong("devices", "a list of physical indices or UUIDs, such as [6, 7]")
    return tuple(dict.fromkeys(_device(table, one) for one in given))


def _device(table: _Table, given: object) -> int | str:
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= _MOST:
        return given
    if isinstance(given, str) and _DEVICE.fullmatch(given):
        return given
    raise table.error(
        f"devices: {_shown(given)} is neither a physical index, such as 6, nor a UUID or its\n"
        '  start, such as "GPU-5d9e4a86".'
    )


def _number(given: object) -> Fraction | None:
    """Return a number from 0 to a million, however it is written; None for anything else."""
    from fractions import Fraction  # noqa: PLC0415 - readers have to be quick

    number = None
    if isinstance(given, str):
        match = _RATIO.fullmatch(given.strip())
        if match and int(match[2] or 1):
            number = Fraction(int(match[1]), int(match[2] or 1))
    elif isinstance(given, float) and math.isfinite(given):
        number = Fraction(str(given))  # 0.1 is a tenth, not the nearest binary number
    elif isinstance(given, int) and not isinstance(given, bool):
        number = Fraction(given)
    return number if number is not None and 0 <= number <= _MOST else None


def _is_name(text: str) -> bool:
    return bool(text.strip()) and text.isprintable() and len(text) <= _NAME_LENGTH


def _key(name: str) -> str:
    """Return a key as it is written in the file: in quotes where it needs them."""
    return name if _BARE.fullmatch(name) else _shown(name)


def _shown(given: object) -> str:
    """Return a value as it stands in the file, no longer than a line has room for."""
    if isinstance(given, str):
        short = clean(given if len(given) <= _SHOWN_LENGTH else f"{given[:_SHOWN_LENGTH]}…")
        return f'"{short}"'
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, (int, float)):
        return "this number" if _short(given) is None else f"{given}"
    if isinstance(given, Mapping):
        return "a table"
    return "a list" if isinstance(given, list) else "a date or a time"


def _short(given: object) -> int | float | None:
    """Return a number unless it is so long that Python refuses to write it out."""
    if isinstance(given, float):
        return given
    return given if isinstance(given, int) and abs(given) < _LONGEST_NUMBER else None
