"""What an error code of the CUDA driver means to a person, and what to do about it.

The codes are those of ``CUresult`` in NVIDIA's ``cuda.h``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SUCCESS = 0
NOT_INITIALIZED = 3
NO_DEVICE = 100
INVALID_DEVICE = 101

_RESTART_MPS = "restart the MPS control daemon, or unset CUDA_MPS_PIPE_DIRECTORY"
_WORDS: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        2: ("out of memory", "free memory on this machine"),
        NOT_INITIALIZED: (
            "not initialised, as in a process forked from one that uses CUDA",
            "restart the kernel",
        ),
        34: (
            "the library found is a stub to build with, not a driver",
            "take the folder of stubs out of LD_LIBRARY_PATH",
        ),
        46: ("the devices are busy or unavailable", "look at  nvidia-smi"),
        NO_DEVICE: ("no GPU", "look at  nvidia-smi -L"),
        INVALID_DEVICE: (
            "invalid device, as where a value names one twice",
            "name each device once in CUDA_VISIBLE_DEVICES",
        ),
        304: (
            "the operating system refused a call",
            "look at the permissions of /dev/nvidia*, and at  dmesg",
        ),
        802: (
            "the system is not ready: NVLink switches are not set up yet",
            "sudo systemctl restart nvidia-fabricmanager",
        ),
        803: (
            "the driver's library and its kernel module are of different versions",
            "reboot the machine; recreate this container if it is one",
        ),
        804: (
            "the forward-compatibility library in use does not fit this GPU",
            "take the folder of cuda-compat out of LD_LIBRARY_PATH",
        ),
        805: ("the MPS control daemon does not answer", _RESTART_MPS),
        806: ("the MPS server does not answer", _RESTART_MPS),
        807: ("the MPS server is not ready", _RESTART_MPS),
        999: (
            "unknown error, as after a suspend or in a container that lost its GPUs",
            "recreate the container, or  sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm",
        ),
    }
)


def cuinit_words(code: int) -> str:
    """Return ``"cuInit 100: no GPU"``."""
    words = _WORDS.get(code)
    return f"cuInit {code}" if words is None else f"cuInit {code}: {words[0]}"


def cuinit_fix(code: int) -> str:
    """Return the one thing that mends this code most often."""
    words = _WORDS.get(code)
    return "look at  nvidia-smi  and  dmesg" if words is None else words[1]
