"""torch.cuda of the stand-in: what initialises the driver does, what does not does not."""

import os

import standin_driver

_initialized = False
_cached_device_count = None


class DeferredCudaCallError(Exception):
    pass


def given():
    """How many devices the driver has given to this process."""
    return standin_driver.count()


def is_available():
    """As measured: initialises the driver, and is_initialized() goes on saying False."""
    return standin_driver.count() > 0


def is_initialized():
    return _initialized


def init():
    global _initialized, _cached_device_count
    if given() == 0:
        raise RuntimeError("No CUDA GPUs are available")
    _initialized = True
    _cached_device_count = given()


def device_count():
    """Through NVML and the variable, as torch 2.3 and newer: initialises nothing."""
    if _cached_device_count is not None:
        return _cached_device_count
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len([one for one in value.split(",") if one.strip().isdigit()]) if value else 4


def current_device():
    init()
    return 0


def set_device(index):
    index = index if isinstance(index, int) else index.index
    init()
    if index >= given():
        raise RuntimeError("CUDA error: invalid device ordinal\nGPU device may be out of range")


def get_device_properties(device):
    init()
    if device < 0 or device >= given():
        raise AssertionError("Invalid device id")


def empty_cache():
    """Does nothing while CUDA is open."""
