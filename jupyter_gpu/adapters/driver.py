"""The CUDA driver in this process, asked without ever waking it.

``cuDeviceGetCount`` answers CUDA_ERROR_NOT_INITIALIZED before ``cuInit`` and success after it, and
neither the question nor a mapped libcuda initialises anything (measured on H200, driver 580). So
only a library that this process has mapped already is asked; none is ever loaded.
"""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ProcessState = Literal["open", "frozen", "absent", "forked"]

_SUCCESS, _NOT_INITIALIZED = 0, 3
_MAPPED = re.compile(r"(/\S*/libcuda\.so(?:\.[0-9.]+)?)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DriverState:
    """What the driver says: ``uuids`` in visible order when frozen, else None.

    A UUID is given as 32 hexadecimal digits, because the driver does not say whether the device
    is a whole GPU or a MIG device.
    """

    state: ProcessState
    uuids: tuple[str, ...] | None = None


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
    library = _mapped_library()
    if library is None:
        return DriverState("absent")
    count = ctypes.c_int()
    code = library.cuDeviceGetCount(ctypes.byref(count))
    if code == _NOT_INITIALIZED:
        return DriverState("open")
    if code != _SUCCESS:  # a stub answers 34, a driver that is shutting down 4
        return DriverState("absent")
    return DriverState("frozen", tuple(_uuid(library, n) for n in range(count.value)))


def _mapped_library() -> ctypes.CDLL | None:
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for path in dict.fromkeys(_MAPPED.findall(maps)):
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        except OSError:  # mapped as data only, not loaded as a library
            continue
        if hasattr(library, "cuDeviceGetCount"):
            return library
    return None


def _uuid(library: ctypes.CDLL, ordinal: int) -> str:
    handle = ctypes.c_int()
    found = (ctypes.c_ubyte * 16)()
    # _v2 by that name: on a MIG device it gives the MIG device's UUID, the older one the GPU's.
    ask = getattr(library, "cuDeviceGetUuid_v2", None) or library.cuDeviceGetUuid
    if library.cuDeviceGet(ctypes.byref(handle), ordinal) != _SUCCESS:
        return ""
    return bytes(found).hex() if ask(ctypes.byref(found), handle) == _SUCCESS else ""
