"""What the checks know beyond the overview: libraries, a fresh process's driver, open devices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Installed:
    """A CUDA library that this Python has.

    ``cuda`` is the CUDA version it was built for, ``"13.0"`` or ``"12"``, ``other`` what it was
    built for instead (``"the CPU only"``); both None where that cannot be told. ``sees`` is the
    number of devices that it has counted in this process, None where it has not or was not asked.
    """

    name: str
    distribution: str
    version: str
    cuda: str | None = None
    other: str | None = None
    loaded: bool = False
    sees: int | None = None


@dataclass(frozen=True, slots=True)
class DriverAnswer:
    """What the CUDA driver told a fresh process that has this process's variables.

    ``found`` is false where there is no libcuda; ``problem`` says why there is no answer although
    there is one. ``cuda`` is the newest version that it runs; ``uuids`` are in visible order, as
    32 hexadecimal digits, because the driver does not say whether a device is a MIG device.
    """

    found: bool = True
    problem: str | None = None
    cuinit: int | None = None
    cuda: str | None = None
    uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceUser:
    """A process that has GPUs' device files open: physical indices, and whether it is an orphan.

    An orphan is a Python program whose session has lost its leader: a worker that outlived its
    kernel, which leads a session of its own.
    """

    pid: int
    user: str
    command: str
    indices: tuple[int, ...]
    orphan: bool = False

    @property
    def words(self) -> str:
        """Return ``"4711 of alice (python train.py)"``."""
        return f"{self.pid} of {self.user} ({self.command})"


@dataclass(frozen=True, slots=True)
class MPS:
    """Where MPS clients look for their control daemon, and whether it runs; None: not known."""

    directory: str
    daemon: bool | None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the checks look at beside the overview and the environment.

    ``driver`` is None where nobody was asked, because the machine is simulated or this process is
    a fork. ``sees_everybody`` is true for root, whose ``users`` are all there are. ``foreign_pids``
    says that NVML's pids are not those of this container. ``pip`` is how whoever reads the fixes
    calls this Python's pip, ``python`` its path where it may not be the Python of a kernel.
    """

    driver: DriverAnswer | None = None
    installed: tuple[Installed, ...] = ()
    users: tuple[DeviceUser, ...] = ()
    sees_everybody: bool = False
    mps: MPS | None = None
    container: bool = False
    foreign_pids: bool = False
    kernel_module: str | None = None
    pip: str = "python -m pip"
    python: str | None = None

    def library(self, distribution: str) -> Installed | None:
        """Return an installed library by its distribution's name, or None."""
        return next((one for one in self.installed if one.distribution == distribution), None)
