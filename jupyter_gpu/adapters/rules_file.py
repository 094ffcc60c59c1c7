"""The system file of rules: where it is, reading it with suspicion, and who a person is.

An administrator writes it, and an error in it is an error of every grant: it is never passed over.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from jupyter_gpu.adapters.place import SYSTEM_DIRECTORY, Place
from jupyter_gpu.core.rules import Rules, RulesError, parse_rules

RULES_PATH = Path("/etc/jupyter-gpu.toml")
CONFIG_VARIABLE = "JUPYTER_GPU_CONFIG"
RULES_SIZE_LIMIT = 1024 * 1024
# To find the line of an error, pieces of the file are read again: so often at most, and of a file
# no longer than this.
_LOOKS, _LONGEST_SEARCHED = 40, 32 * 1024
_TOML_LINE = re.compile(r" \(at line ([0-9]+), column [0-9]+\)| \(at end of document\)")

_Reader = Callable[[str], Mapping[str, object]]


def find_rules_path(
    place: Place, environ: Mapping[str, str], *, system: Path = SYSTEM_DIRECTORY
) -> Path | None:
    """Return the file of rules that holds for a place, None where there is none.

    ``JUPYTER_GPU_CONFIG`` counts wherever the lease directory is not the machine's own, where
    everybody has to keep to the same rules. A file that it names is returned though it be missing,
    which is an error; the machine's file need not exist. Costs one system call without a file.
    ``system`` is the machine's own lease directory.
    """
    given = environ.get(CONFIG_VARIABLE)
    if given and not _is_machines_own(place, system):
        return Path(given)
    if place.kind == "simulated":
        return None
    path = _machines_file(place)
    try:
        path.lstat()
    except FileNotFoundError:
        return None
    except OSError:  # whatever stands there is not "no rules": reading it says why
        return path
    return path


def _is_machines_own(place: Place, system: Path) -> bool:
    if place.kind != "given":
        return place.kind == "system"
    try:  # JUPYTER_GPU_LEASE_DIR may name the machine's own directory, by whatever path
        return place.directory.samefile(system)
    except OSError:
        return False


def _machines_file(place: Place) -> Path:
    if place.kind != "system":
        return RULES_PATH
    # Beside /run/jupyter-gpu, also where the machine's files begin elsewhere than at "/".
    return place.directory.parent.parent / RULES_PATH.relative_to("/")


def read_rules(place: Place, environ: Mapping[str, str]) -> Rules:
    """Return the rules that hold for a place, read anew at each call.

    Raises
    ------
    RulesError
        When there is a file and any of it cannot be believed or understood.
    """
    path = find_rules_path(place, environ)
    if path is None:
        return Rules()
    data = _read(path, machines=path == _machines_file(place))
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = _text(path, data)
    tables = _tables(path, text, toml.loads, toml.TOMLDecodeError)
    try:
        return parse_rules(tables, str(path))
    except RulesError as error:
        raise error.at_line(_line_of(error, text, toml.loads)) from None


def _read(path: Path, *, machines: bool) -> bytes:
    """Return what is in a file; the machine's own has to be one that only root can change."""
    if not path.is_absolute() or "\0" in str(path):
        # Every program would mean another file, and none would know.
        raise RulesError(str(path), f"{CONFIG_VARIABLE} needs an absolute path.")
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) * machines
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        # Looked at first, because merely opening some devices does something.
        _require_sound(path, path.lstat() if machines else path.stat(), machines=machines)
        with os.fdopen(os.open(path, flags), "rb") as file:
            _require_sound(path, os.fstat(file.fileno()), machines=machines)
            data = file.read(RULES_SIZE_LIMIT + 1)
    except FileNotFoundError:
        raise RulesError(
            str(path), f"There is no such file, and {CONFIG_VARIABLE} names it."
        ) from None
    except PermissionError:
        raise RulesError(
            str(path),
            "It may not be read by everybody, and has to be. Run\n"
            f"  sudo chmod 644 {shlex.quote(str(path))}",
        ) from None
    except OSError as error:
        raise RulesError(str(path), f"It cannot be read: {error.strerror}.") from error
    if len(data) > RULES_SIZE_LIMIT:  # it has grown meanwhile
        raise RulesError(str(path), _TOO_LARGE)
    return data


_TOO_LARGE = "It is larger than 1 MiB, which rules never are."


def _require_sound(path: Path, status: os.stat_result, *, machines: bool) -> None:
    if machines and stat.S_ISLNK(status.st_mode):
        raise RulesError(str(path), "It is a symbolic link: put the file itself there.")
    if not stat.S_ISREG(status.st_mode):
        raise RulesError(str(path), "It is not a plain file.")
    writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if machines and (status.st_uid != 0 or writable):
        quoted = shlex.quote(str(path))
        raise RulesError(
            str(path),
            "Others than root can change it. Look at what it says, then run\n"
            f"  sudo chown root {quoted} && sudo chmod 644 {quoted}",
        )
    if status.st_size > RULES_SIZE_LIMIT:
        raise RulesError(str(path), _TOO_LARGE)


def _text(path: Path, data: bytes) -> str:
    try:
        # With the mark that some editors put at the beginning. TOML takes both kinds of line ends.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise RulesError(str(path), "It is not UTF-8 text, as TOML is.", line=line) from None


def _tables(
    path: Path, text: str, loads: _Reader, malformed: type[ValueError]
) -> Mapping[str, object]:
    try:
        return loads(text)
    except malformed as error:
        found = _TOML_LINE.search(str(error))
        line = int(found[1]) if found and found[1] else text.rstrip().count("\n") + 1
        why = _TOML_LINE.sub("", str(error))
        raise RulesError(str(path), f"This is not TOML: {why}.", line=line) from None
    except RecursionError:
        raise RulesError(str(path), "Lists or tables in it are nested too deeply.") from None
    except ValueError:  # Python converts no number of thousands of digits
        raise RulesError(str(path), "A number in it is far too long.") from None


def _line_of(error: RulesError, text: str, loads: _Reader) -> int | None:
    """Return the line where the statement begins that brings an error in, None where unknown.

    That is where the shortest beginning of the file ends that is TOML and has the same error.
    """
    if len(text) > _LONGEST_SEARCHED:
        return None
    lines = [f"{line}\n" for line in text.split("\n")]
    looks = iter(range(_LOOKS))

    def outcome(length: int) -> str | None:
        """Return the error of the first lines, an empty text without one, None if not TOML."""
        next(looks)  # StopIteration when it takes too long
        try:
            parse_rules(loads("".join(lines[:length])), error.source)
        except RulesError as found:
            return str(found)
        except (ValueError, RecursionError):
            return None
        return ""

    try:
        return _first_line(str(error), len(lines), outcome)
    except StopIteration:
        return None


def _first_line(error: str, end: int, outcome: Callable[[int], str | None]) -> int:
    low, found = 0, end
    while low < end:
        middle = (low + end) // 2
        # Inside a statement of several lines nothing can be told: on to its end.
        length = middle
        while length < end and outcome(length) is None:
            length += 1
        if length == end:
            end = middle
        elif outcome(length) == error:
            found = end = length
        else:
            low = length + 1
    begin = found - 1
    while outcome(begin) is None:
        begin -= 1
    return begin + 1


def person(uid: int) -> tuple[str, tuple[str, ...]]:
    """Return a user's name and the names of all their groups, as they are at this moment.

    A user or a group without a name here goes by its number.
    """
    import pwd  # noqa: PLC0415 - not on every system, where this module can be imported all the same

    try:
        user = pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid), ()
    return user, groups_of(user)


def groups_of(user: str) -> tuple[str, ...]:
    """Return the names of all groups of a user; none for a name that nobody has here."""
    import pwd  # noqa: PLC0415 - see above

    try:
        numbers = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except (KeyError, ValueError):
        return ()
    return tuple(dict.fromkeys(map(_group_name, numbers)))


def _group_name(number: int) -> str:
    import grp  # noqa: PLC0415 - see above

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
