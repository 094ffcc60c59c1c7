"""What an NVML error code means to a person: what is so, and what to do about it.

NVML answers in numbers; every face prints these sentences instead. The codes are those of
``nvmlReturn_t`` in NVIDIA's ``nvml.h``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
UNKNOWN = 999

_ABOUT_THE_MACHINE: Mapping[int, str] = MappingProxyType(
    {
        NOT_SUPPORTED: "The NVIDIA driver library does not support this system; "
        "install a driver that supports it.",
        NO_PERMISSION: "This user may not talk to the NVIDIA driver; "
        "ask the administrator for access to /dev/nvidiactl and /dev/nvidia*.",
        DRIVER_NOT_LOADED: "The NVIDIA driver is installed but not loaded; "
        "load it with `sudo modprobe nvidia`, or start this container with its GPUs.",
        LIBRARY_NOT_FOUND: "There is no NVIDIA driver library (libnvidia-ml.so.1) here; "
        "install the driver, or start this container with its GPUs.",
        FUNCTION_NOT_FOUND: "The NVIDIA driver is too old to list its GPUs; update the driver.",
        GPU_IS_LOST: "A GPU is lost: it has fallen off the bus and blocks the driver; "
        "reboot the machine.",
        RESET_REQUIRED: "A GPU needs a reset and blocks the driver; "
        "reset it with `sudo nvidia-smi --gpu-reset`, or reboot.",
        VERSION_MISMATCH: "The NVIDIA driver was updated while the old one is still running; "
        "running kernels are fine, reboot the machine before starting new ones on a GPU.",
        UNKNOWN: "The NVIDIA driver reports an unknown error, as it does in a container that lost "
        "its GPUs; recreate the container, or look at `dmesg` on the host.",
    }
)

_ABOUT_A_GPU: Mapping[int, str] = MappingProxyType(
    {
        NOT_SUPPORTED: "does not support what must be asked of it before it is used; "
        "update the driver.",
        NO_PERMISSION: "may not be looked at by this user; "
        "ask the administrator for access to its device file.",
        DRIVER_NOT_LOADED: "has lost its driver; load it with `sudo modprobe nvidia`.",
        LIBRARY_NOT_FOUND: "cannot be read, because part of the driver library is missing; "
        "reinstall the driver.",
        FUNCTION_NOT_FOUND: "cannot be read, because the driver is too old; update the driver.",
        GPU_IS_LOST: "is lost: it has fallen off the bus; reboot the machine, "
        "and check the card if it happens again.",
        RESET_REQUIRED: "needs a reset; stop what uses it and run `sudo nvidia-smi --gpu-reset`, "
        "or reboot.",
        VERSION_MISMATCH: "cannot be read, because the driver was updated while the old one is "
        "still running; running kernels are fine, reboot the machine before starting new ones.",
        UNKNOWN: "answers with an unknown error; if this is a container, recreate it, "
        "otherwise look at `dmesg`.",
    }
)


def machine_problem(code: int) -> str:
    """Return one sentence about the machine as a whole for an NVML error code."""
    return _ABOUT_THE_MACHINE.get(
        code,
        f"The NVIDIA driver library failed with code {code}; "
        "run `nvidia-smi` to see whether the driver works.",
    )


def gpu_problem(index: int, code: int) -> str:
    """Return one sentence about the GPU with this physical index for an NVML error code."""
    words = _ABOUT_A_GPU.get(
        code, f"cannot be read: NVML failed with code {code}; run `nvidia-smi -i {index}`."
    )
    return f"GPU {index} {words}"


def mig_problem(index: int, count: int) -> str:
    """Return why a GPU in MIG mode is not leased as a whole, given its number of MIG devices."""
    if count:
        return f"GPU {index} is in MIG mode and is leased in parts; ask for one of its MIG devices."
    return (
        f"GPU {index} is in MIG mode and is leased in parts, but has no MIG devices; "
        "create some with `sudo nvidia-smi mig -cgi`, or switch MIG mode off."
    )


def hidden_problem(hidden: int, count: int) -> str | None:
    """Return how many of the machine's GPUs this process may not see, or None if it sees all."""
    if not hidden:
        return None
    verb = "is" if hidden == 1 else "are"
    return (
        f"{hidden} of {count} GPUs {verb} hidden from this process (no permission); "
        "if you need more, ask the administrator or your scheduler for them."
    )


NO_GPU = (
    "The NVIDIA driver works but reports no GPU; "
    "start this container or job with GPUs, or look at `lspci` on the host."
)
NO_PACKAGE = (
    "The Python package nvidia-ml-py, which reads the GPUs, cannot be imported; "
    "install it with `pip install nvidia-ml-py`."
)
