"""Caches are emptied by each framework's own means, and only where it has begun; over stand-ins."""

import contextlib
import types

import pytest

from jupyter_gpu.adapters.framework_memory import empty_caches, torch_memory
from jupyter_gpu.core.memory_report import Emptied, TorchMemory


class Told(list):
    """What stand-ins were asked to do, in order."""

    def note(self, what):
        return lambda *arguments: self.append((what, *arguments))


@pytest.fixture
def told():
    return Told()


def module(**what):
    return types.SimpleNamespace(**what)


def torch(told, *, initialised=True, **what):
    plain = {
        "is_initialized": lambda: initialised,
        "empty_cache": told.note("torch"),
        "memory_allocated": lambda ordinal: 10 + ordinal,
        "memory_reserved": lambda ordinal: 20 + ordinal,
    }
    return module(cuda=module(**{**plain, **what}))


def cupy(told):
    @contextlib.contextmanager
    def device(ordinal):
        told.append(("device", ordinal))
        yield

    return module(
        cuda=module(Device=device),
        get_default_memory_pool=lambda: module(free_all_blocks=told.note("pool")),
        get_default_pinned_memory_pool=lambda: module(free_all_blocks=told.note("pinned")),
    )


def jax(told, *backends):
    return {
        "jax": module(clear_caches=told.note("jax")),
        "jax._src.xla_bridge": module(_backends=dict.fromkeys(backends)),
    }


def numba(told, *contexts):
    class Manager:
        def __init__(self, context):
            self._device = module(primary_context=context)

        def __enter__(self):
            told.append("entered")

        def __exit__(self, *error):
            told.append("left")

    freed = module(deallocations=module(clear=told.note("numba")))
    gpus = module(lst=[Manager(freed if context else None) for context in contexts])
    return {"numba.cuda.cudadrv.devices": module(gpus=gpus)}


def tensorflow(begun):
    return {"tensorflow.python.eager.context": module(_context=module(_initialized=begun))}


def test_nothing_is_loaded_so_nothing_is_done():
    assert empty_caches((0,), {}) == ()
    assert torch_memory((0,), {}) == {}


def test_torch_empties_its_cache_once_it_has_begun(told):
    assert empty_caches((0,), {"torch": torch(told)}) == (Emptied("torch", "emptied its cache"),)
    assert told == [("torch",)]
    told.clear()
    assert empty_caches((0,), {"torch": torch(told, initialised=False)}) == ()
    assert torch_memory((0,), {"torch": torch(told, initialised=False)}) == {}
    assert told == []


def test_torch_s_numbers_are_read_where_it_gives_them(told):
    def allocated(ordinal):
        if ordinal:
            raise RuntimeError("invalid device ordinal")
        return 7

    assert torch_memory((0, 1), {"torch": torch(told)}) == {
        0: TorchMemory(10, 20),
        1: TorchMemory(11, 21),
    }
    partly = torch_memory((0, 1), {"torch": torch(told, memory_allocated=allocated)})
    assert partly == {0: TorchMemory(7, 20)}


@pytest.mark.parametrize("half", [module(), module(cuda=module()), module(cuda=None)])
def test_a_torch_that_is_half_imported_is_left_alone(half):
    assert empty_caches((0,), {"torch": half}) == ()


def test_cupy_is_asked_only_on_devices_with_a_context(told):
    (done,) = empty_caches((0, 2), {"cupy": cupy(told)})
    assert done.in_words() == "CuPy emptied its pools"
    assert told == [("device", 0), ("pool",), ("device", 2), ("pool",), ("pinned",)]
    told.clear()
    assert empty_caches((), {"cupy": cupy(told)}) == ()
    assert told == []


def test_jax_drops_compiled_functions_where_it_has_a_gpu_backend(told):
    (done,) = empty_caches((0,), jax(told, "cpu", "cuda"))
    assert "its pool is given back only by a restart" in done.done
    assert told == [("jax",)]
    assert empty_caches((0,), jax(told, "cpu")) == ()
    assert empty_caches((0,), jax(told)) == ()
    assert empty_caches((0,), {"jax": module()}) == ()


def test_numba_frees_what_waits_where_it_has_a_context(told):
    (done,) = empty_caches((0,), numba(told, False, True))
    assert done.in_words() == "numba freed what waited to be freed"
    assert told == ["entered", ("numba",), "left"]
    assert empty_caches((0,), numba(told, False)) == ()
    assert empty_caches((0,), {"numba.cuda.cudadrv.devices": module(gpus=module())}) == ()


def test_tensorflow_is_only_said_to_keep_its_memory():
    (done,) = empty_caches((0,), tensorflow(begun=True))
    assert done.in_words() == "TensorFlow gives nothing back before a restart"
    assert empty_caches((0,), tensorflow(begun=False)) == ()


def test_one_that_fails_is_told_and_the_others_are_still_emptied(told):
    def fail():
        raise RuntimeError("CUDA error\nand much more")

    loaded = {"torch": torch(told, empty_cache=fail), "cupy": cupy(told)}
    failed, emptied = empty_caches((0,), loaded)
    assert failed.in_words() == "torch could not: RuntimeError: CUDA error"
    assert emptied.problem is None
