"""A stand-in for TensorFlow 2.20: listing devices initialises the driver."""

from tensorflow import config

__version__ = "2.20.0"
