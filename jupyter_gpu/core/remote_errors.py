"""Which errors came from another machine or process, whose GPUs need not be this kernel's.

Ray, Dask, PyTorch's RPC and their like raise again what a worker raised elsewhere, often with the
type that it had there. What it says of memory or devices is not of this kernel. What Python's own
pools pass on is not meant: their workers run on this machine. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Packages whose types, or whose frames in a traceback, say that it was passed on from elsewhere.
_PASS_ON = (
    *("ray", "distributed", "ipyparallel", "pyspark", "py4j", "mpi4py.futures", "execnet"),
    *("rpyc", "Pyro4", "Pyro5", "celery", "parsl", "submitit", "xoscar", "monarch", "modal"),
    *("torch.distributed.rpc", "gradio_client", "tritonclient", "xmlrpc", "grpc"),
)
# Dask's own schedulers also run tasks in this process: its frames tell nothing, its types do.
_TYPES_ONLY = ("dask",)
# torch's RPC names the worker first; TensorFlow the job, which is "localhost" in one process.
_IN_MESSAGES = re.compile(r"On WorkerInfo\(|/job:(?!localhost\b)\w")
_TRACEBACK = "Traceback (most recent call last)"


def is_remote(
    types: Iterable[str], modules: Iterable[str], message: str, *, explained: bool = False
) -> bool:
    """Return whether an error was passed on from elsewhere.

    Parameters
    ----------
    types
        The modules of its classes.
    modules
        Those of its traceback.
    message
        Its text. A traceback in it is that of some other process.
    explained
        Whether it is known which process of this machine such a traceback would be of.
    """
    if any(_within(one, (*_PASS_ON, *_TYPES_ONLY)) for one in types):
        return True
    if any(_within(one, _PASS_ON) for one in modules):
        return True
    if _IN_MESSAGES.search(message) is not None:
        return True
    return _TRACEBACK in message and not explained


def _within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in packages)
