"""A stand-in for a training library that chooses a device by itself."""

import torch


def prepare(rank):
    """Choose the device of a rank, as such libraries do."""
    torch.cuda.set_device(rank)
