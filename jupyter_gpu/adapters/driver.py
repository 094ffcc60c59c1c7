"""The CUDA driver in this process, asked without ever waking it.

``cuDeviceGetCount`` answers CUDA_ERROR_NOT_INITIALIZED before ``cuInit`` and success after it, and
neither the question nor a mapped libcuda initialises anything (measured on H200, driver 580). So
only a library that this process has mapped already is asked; none is ever loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ProcessState = Literal["open", "frozen", "absent", "forked"]

_SUCCESS, _NOT_INITIALIZED = 0, 3
# The sixth column, which may hold blanks.
_MAPPED = re.compile(
    r"^(?:\S+[ ]+){5}(/.*/libcuda\.so(?:\.[0-9.]+)?)(?:[ ]\(deleted\))?$", re.MULTILINE
)
_SONAME = "libcuda.so.1"
_STATM = "/proc/self/statm"


@dataclass(frozen=True, slots=True)
class DriverState:
    """What the driver says: ``uuids`` in visible order when frozen, else None.

    A UUID is given as 32 hexadecimal digits, because the driver does not say whether the device
    is a whole GPU or a MIG device. ``contexts`` are the ordinals on which this process has a
    context, and so memory.
    """

    state: ProcessState
    uuids: tuple[str, ...] | None = None
    contexts: tuple[int, ...] = ()


def look_at_driver(loaded_in: int) -> DriverState:
    """Return the state of the CUDA driver in this process.

    Parameters
    ----------
    loaded_in
        The pid of the process in which the caller began; a forked child never asks, because the
        driver's state in it is undefined.
    """
    if os.getpid() != loaded_in:
        return DriverState("forked")
    answers = {code: library for library, code in map(_asked, _mapped_libraries())}
    library = answers.get(_SUCCESS)
    if library is None:
        # A stub answers 34, a driver that is shutting down 4.
        return DriverState("open" if _NOT_INITIALIZED in answers else "absent")
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    return DriverState(
        "frozen",
        tuple(_uuid(library, n) for n in range(count.value)),
        tuple(n for n in range(count.value) if _has_context(library, n)),
    )


class DriverWatch:
    """The same question, yes or no, in a few microseconds: for hooks that ask all the time.

    A library is looked for only when files were mapped since the last look, and nothing here waits
    for a lock of the linker while another thread may wait for the interpreter's: imports of
    compiled modules in other threads hold both.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._pages = _MappedPages()
        self._mapped: int | None = None
        self._library: ctypes.CDLL | None = None
        self._count = ctypes.c_int()
        self._count_reference = ctypes.byref(self._count)

    def close(self) -> None:
        """Close what is kept open; a later question opens it again."""
        self._pages.close()

    def is_frozen(self) -> bool:
        """Return whether the driver is initialised in this process; False in a forked child."""
        if os.getpid() != self._pid:
            return False
        if self._library is None:
            mapped = self._pages.count()
            if mapped == self._mapped:
                return False
            self._mapped = mapped
            self._library = _working_library()
            if self._library is None:
                return False
        answered: int = self._library.cuDeviceGetCount(self._count_reference)
        return answered == _SUCCESS


class _MappedPages:
    """Counts the pages of this process that cannot be written: its libraries, not its memory.

    The linker's own counter of libraries would be as quick, but is told to a callback, under a lock
    that another thread may wait for while it holds the interpreter's: each waits for the other for
    good. The file stays open because opening it takes longer than all the rest.
    """

    def __init__(self) -> None:
        self._file: int | None = None

    def count(self) -> int:
        """Return their number; 0 where the system does not tell it, and so has no driver."""
        found = None if self._file is None else _not_writable(self._file)
        if found is None:  # the first time, or somebody has closed all files
            try:
                self._file = os.open(_STATM, os.O_RDONLY)
            except OSError:
                return 0
            found = _not_writable(self._file)
        return found or 0

    def close(self) -> None:
        """Close the file, unless its descriptor has become another file's."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # closed by somebody else
                if os.path.samestat(os.fstat(file), os.stat(_STATM)):  # noqa: PTH116 - one stat
                    os.close(file)


def _not_writable(statm: int) -> int | None:
    """Return all pages without those of data and stacks; None where it is no such file any more."""
    try:
        fields = os.pread(statm, 256, 0).split()
        return int(fields[0]) - int(fields[5])
    except (OSError, ValueError, IndexError):
        return None


def _working_library() -> ctypes.CDLL | None:
    """Return the libcuda of this process that answers as a driver does; a stub does not."""
    # Calls through PyDLL keep the interpreter's lock, and so do not hand it to a busy thread.
    library = _loaded(_SONAME, ctypes.PyDLL)
    if library is None:
        return None
    for found in (library, *_mapped_libraries(ctypes.PyDLL)):
        if _asked(found)[1] in (_SUCCESS, _NOT_INITIALIZED):
            return found
    return None


def _asked(library: ctypes.CDLL) -> tuple[ctypes.CDLL, int]:
    count = ctypes.c_int()
    return library, library.cuDeviceGetCount(ctypes.byref(count))


def _mapped_libraries(kind: type[ctypes.CDLL] = ctypes.CDLL) -> Iterator[ctypes.CDLL]:
    """Yield every libcuda of this process, by its name and by the files that are mapped."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        maps = ""
    # By its name also one whose file is gone, because the driver was updated meanwhile.
    for name in dict.fromkeys((_SONAME, *_MAPPED.findall(maps))):
        library = _loaded(name, kind)
        if library is not None:
            yield library


def _loaded(name: str, kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL | None:
    try:
        library = kind(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except (OSError, AttributeError):  # not loaded, or mapped as data only; or not Linux
        return None
    return library if hasattr(library, "cuDeviceGetCount") else None


def _uuid(library: ctypes.CDLL, ordinal: int) -> str:
    handle = ctypes.c_int()
    found = (ctypes.c_ubyte * 16)()
    # _v2 by that name: on a MIG device it gives the MIG device's UUID, the older one the GPU's.
    ask = getattr(library, "cuDeviceGetUuid_v2", None) or library.cuDeviceGetUuid
    if library.cuDeviceGet(ctypes.byref(handle), ordinal) != _SUCCESS:
        return ""
    return bytes(found).hex() if ask(ctypes.byref(found), handle) == _SUCCESS else ""


def _has_context(library: ctypes.CDLL, ordinal: int) -> bool:
    handle, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    ask = getattr(library, "cuDevicePrimaryCtxGetState", None)
    if ask is None or library.cuDeviceGet(ctypes.byref(handle), ordinal) != _SUCCESS:
        return False
    code: int = ask(handle, ctypes.byref(flags), ctypes.byref(active))
    return code == _SUCCESS and bool(active.value)
