"""Caps in frameworks that are loaded, over stand-ins, and over torch's own queue."""

import types
import warnings

import pytest

from jupyter_gpu.adapters.framework_caps import (
    PendingCaps,
    caps_now,
    caps_waiting,
    jax_has_begun,
    set_caps,
    set_caps_later,
    torch_state,
)
from jupyter_gpu.core.errors import GPUError


def module(**what):
    return types.SimpleNamespace(**what)


def torch(*, initialised=True, **what):
    kept, queue = {}, []

    def cap(fraction, ordinal):
        if ordinal > 1:
            raise RuntimeError("invalid device ordinal\nmore")
        kept[ordinal] = fraction

    cuda = module(
        **{
            "is_initialized": lambda: initialised,
            "set_per_process_memory_fraction": cap,
            "get_per_process_memory_fraction": lambda ordinal: kept[ordinal],
            "_queued_calls": queue,
            "_lazy_call": lambda call: queue.append((call, ["a stack"])),
            **what,
        }
    )
    return module(cuda=cuda, __version__="2.11.0+cu130", kept=kept, queue=queue)


def test_how_far_torch_is():
    awake, asleep = {"torch": torch()}, {"torch": torch(initialised=False)}
    assert torch_state(awake, frozen=True).begun
    assert not torch_state(awake, frozen=False).begun
    state = torch_state(asleep, frozen=True)
    assert (state.imported, state.begun, state.version) == (True, False, "2.11.0+cu130")
    half = module(cuda=module(), __version__="2.11")
    assert not torch_state({"torch": half}, frozen=True).begun
    assert not torch_state({}, frozen=True).imported


def test_caps_are_set_and_read_back():
    loaded = {"torch": torch()}
    set_caps({0: 0.5, 1: 0.25}, loaded)
    assert caps_now([0, 1], loaded) == {0: 0.5, 1: 0.25}
    old = torch()
    del old.cuda.get_per_process_memory_fraction
    assert caps_now([0], {"torch": old}) == {}


def test_what_torch_refuses_is_told_in_its_words():
    with pytest.raises(GPUError, match=r"cap for cuda:7: invalid device ordinal$"):
        set_caps({7: 0.5}, {"torch": torch()})


def test_one_cap_at_most_waits_for_torch():
    made = torch(initialised=False)
    loaded = {"torch": made}
    made.queue.append((print, ["torch's own"]))
    assert caps_waiting(loaded) == {}
    assert set_caps_later({0: 0.5}, loaded)
    assert set_caps_later({0: 0.25, 1: 0.25}, loaded)
    assert caps_waiting(loaded) == {0: 0.25, 1: 0.25}
    assert len(made.queue) == 2
    made.queue[1][0]()
    assert made.kept == {0: 0.25, 1: 0.25}
    assert set_caps_later({}, loaded)
    assert made.queue == [(print, ["torch's own"])]


def test_a_cap_that_waits_never_keeps_torch_from_initialising():
    made = torch()
    PendingCaps(made.cuda, {7: 0.5, 0: 0.5})()
    assert made.kept == {0: 0.5}


@pytest.mark.parametrize("lacks", ["_queued_calls", "_lazy_call"])
def test_a_torch_without_such_a_queue_cannot_be_told(lacks):
    made = torch()
    delattr(made.cuda, lacks)
    assert not set_caps_later({0: 0.5}, {"torch": made})


def test_torch_s_own_queue_takes_it():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch misses numpy
        real = pytest.importorskip("torch")
    loaded = {"torch": real}
    before = list(real.cuda._queued_calls)
    assert set_caps_later({0: 0.5}, loaded)
    assert caps_waiting(loaded) == {0: 0.5}
    assert set_caps_later({}, loaded)
    assert real.cuda._queued_calls == before


def test_how_far_jax_is():
    begun = {"jax": module(), "jax._src.xla_bridge": module(_backends={"cuda": object()})}
    assert jax_has_begun(begun) is True
    assert jax_has_begun({"jax": module(), "jax._src.xla_bridge": module(_backends={})}) is False
    assert jax_has_begun({"jax": module()}) is False
