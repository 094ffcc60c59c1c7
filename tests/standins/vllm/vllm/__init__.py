"""A stand-in for vLLM: reads the variable as numbers while it is imported."""

__version__ = "0.9.0"


def visible():
    import os

    return [int(one) for one in os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")]
