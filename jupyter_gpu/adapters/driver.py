"""The CUDA driver in this process, asked without ever waking it.

``cuDeviceGetCount`` answers CUDA_ERROR_NOT_INITIALIZED before ``cuInit`` and success after it, and
neither the question nor a mapped libcuda initialises anything (measured on H200, driver 580). So
only a library that this process has mapped already is asked; none is ever loaded.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ProcessState = Literal["open", "frozen", "absent", "forked"]

_SUCCESS, _NOT_INITIALIZED = 0, 3
_MAPPED = re.compile(r"(/\S*/libcuda\.so(?:\.[0-9.]+)?)$", re.MULTILINE)
_SONAME = "libcuda.so.1"


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

    A library is looked for only when the linker has loaded something since the last look.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._count_loads = _load_counter()
        self._loads = -1
        self._library: ctypes.CDLL | None = None
        self._count = ctypes.c_int()
        self._count_reference = ctypes.byref(self._count)

    def is_frozen(self) -> bool:
        """Return whether the driver is initialised in this process; False in a forked child."""
        if self._library is None:
            loads = self._count_loads()
            if loads == self._loads:
                return False
            self._loads = loads
            self._library = _loaded(_SONAME)
            if self._library is None:
                return False
        if os.getpid() != self._pid:
            return False
        answered: int = self._library.cuDeviceGetCount(self._count_reference)
        return answered == _SUCCESS


class _LoadedObject(ctypes.Structure):
    # struct dl_phdr_info of <link.h>; dlpi_adds counts what was ever loaded.
    _fields_ = (
        ("dlpi_addr", ctypes.c_void_p),
        ("dlpi_name", ctypes.c_char_p),
        ("dlpi_phdr", ctypes.c_void_p),
        ("dlpi_phnum", ctypes.c_uint16),
        ("dlpi_adds", ctypes.c_ulonglong),
    )


def _load_counter() -> Callable[[], int]:
    """Return a function that tells how many libraries were ever loaded: under a microsecond."""
    found = [0]

    def note(info: Any, size: int, data: object) -> int:  # noqa: ANN401 - a ctypes pointer
        del size, data
        found[0] = info[0].dlpi_adds
        return 1  # the first object tells it already

    try:
        iterate = ctypes.CDLL(None).dl_iterate_phdr
    except (OSError, TypeError, AttributeError):  # not Linux: there is no driver to watch either
        return lambda: 0
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p
    )
    callback = kind(note)

    def count() -> int:
        iterate(callback, None)
        return found[0]

    return count


def _asked(library: ctypes.CDLL) -> tuple[ctypes.CDLL, int]:
    count = ctypes.c_int()
    return library, library.cuDeviceGetCount(ctypes.byref(count))


def _mapped_libraries() -> Iterator[ctypes.CDLL]:
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for path in dict.fromkeys(_MAPPED.findall(maps)):
        library = _loaded(path)
        if library is not None:
            yield library


def _loaded(name: str) -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
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
