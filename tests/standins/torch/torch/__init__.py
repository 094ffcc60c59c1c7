"""A stand-in for a CUDA build of torch 2.11: the calls that the tests make, and their errors."""

from torch import cuda, nn, version

__version__ = "2.11.0+cu130"


class OutOfMemoryError(RuntimeError):
    """What torch raises when a device has no more memory."""


class device:
    """torch.device: a type and an index."""

    def __init__(self, name, index=None):
        kind, _, number = str(name).partition(":")
        self.type = kind
        self.index = int(number) if number else index


class Tensor:
    """A tensor that can be moved to a device that exists."""

    def cuda(self, index=0):
        return self.to(f"cuda:{index}")

    def to(self, where):
        where = where if isinstance(where, device) else device(where)
        cuda.init()
        if (where.index or 0) >= cuda.given():
            raise RuntimeError("CUDA error: invalid device ordinal\nGPU device may be out of range")
        return self


def ones(*shape, device=None):
    """A tensor; on a device where one is named."""
    made = Tensor()
    return made if device is None else made.to(device)
