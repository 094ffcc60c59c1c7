"""A real shell in a process whose CUDA driver is the double, with stand-ins for frameworks.

``BEGIN`` is the beginning of such a program: ``shell`` is the shell, ``freeze()`` initialises the
driver, ``machine(...)`` changes the machine under it, ``standin(name, **what)`` loads a module,
``torch_standin(...)`` one like torch, and ``gpu(line)`` answers ``%gpu``.
"""

from pathlib import Path

TESTS = Path(__file__).parent

BEGIN = f"""
import ctypes, json, os, sys, types, warnings
sys.path.insert(0, {str(TESTS)!r})
from doubles import gpu as described
from doubles.machine import DriverDouble
from support_shell import make_shell
GIB = 2**30
ME = os.getpid()
double = DriverDouble(".", os.environ["JUPYTER_GPU_DOUBLE"])
opened = make_shell()
shell = opened.__enter__()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    shell.run_line_magic("load_ext", "jupyter_gpu")

def gpu(line):
    return shell.run_line_magic("gpu", line)

def flat(shown):
    return " ".join(repr(shown).split())

def freeze(context=True):
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == 0
    if context:
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0) == 0

def machine(own_bytes, *others, used_bytes=None):
    processes = [{{"pid": ME, "memory_bytes": own_bytes}}] if own_bytes else []
    processes += [{{"pid": pid, "memory_bytes": amount}} for pid, amount in others]
    used = sum(one["memory_bytes"] for one in processes) if used_bytes is None else used_bytes
    double.write(described(0, memory_used_bytes=used, processes=processes), described(1))

def standin(name, **what):
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__.update(what)
    return module

class Tensor:
    pass

def torch_standin(*, initialised=True, version="2.11.0+cu130", **what):
    told = []
    cuda = types.SimpleNamespace(
        is_initialized=lambda: initialised,
        empty_cache=lambda: (told.append("empty_cache"), machine(3 * GIB)),
        memory_allocated=lambda ordinal: 2 * GIB if ordinal == 0 else 0,
        memory_reserved=lambda ordinal: (5 * GIB if not told else 2 * GIB) if ordinal == 0 else 0,
        **what,
    )
    torch = standin("torch", cuda=cuda, told=told, Tensor=Tensor, __version__=version)
    return torch

def end():
    opened.__exit__(None, None, None)
"""
