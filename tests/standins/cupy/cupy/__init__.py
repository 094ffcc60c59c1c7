"""A stand-in for CuPy: importing it leaves the driver open, the first array does not."""

import standin_driver

__version__ = "14.0.0"


def zeros(shape):
    standin_driver.make_context(0)
    return [0] * shape
