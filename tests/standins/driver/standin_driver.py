"""The driver under the stand-ins: the double of libcuda, as a library would load and use it."""

import ctypes

cuda = ctypes.CDLL("libcuda.so.1")


def initialise():
    """Initialise CUDA in this process; returns cuInit's code."""
    return cuda.cuInit(0)


def count():
    """Return the number of visible devices, initialising CUDA to find out."""
    initialise()
    found = ctypes.c_int()
    return found.value if cuda.cuDeviceGetCount(ctypes.byref(found)) == 0 else 0


def make_context(ordinal=0):
    """Initialise CUDA and make a context on a device."""
    initialise()
    handle = ctypes.c_void_p()
    return cuda.cuDevicePrimaryCtxRetain(ctypes.byref(handle), ordinal)
