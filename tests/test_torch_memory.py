"""Torch's allocator, asked only where it is awake already; torch is a stand-in here."""

from types import SimpleNamespace

import pytest

from jupyter_gpu.adapters import torch_memory
from jupyter_gpu.core.measurement import AllocatorMemory


class StandInCuda:
    """The part of ``torch.cuda`` that is asked; anything else that is touched is an error."""

    def __init__(self, *held, awake=True):
        self.held, self.peak = list(held), list(held)
        self.awake = awake
        self.resets = []

    def is_initialized(self):
        return self.awake

    def allocate(self, ordinal, size):
        self.held[ordinal] += size
        self.peak[ordinal] = max(self.peak[ordinal], self.held[ordinal])

    def reset_peak_memory_stats(self, ordinal):
        assert self.awake
        self.resets.append(ordinal)
        self.peak[ordinal] = self.held[ordinal]

    def memory_allocated(self, ordinal):
        assert self.awake
        return self.held[ordinal]

    def max_memory_allocated(self, ordinal):
        assert self.awake
        return self.peak[ordinal]


def modules(cuda):
    return {"torch": SimpleNamespace(cuda=cuda)}


def test_the_peak_counts_from_the_cell():
    cuda = StandInCuda(100, 0)
    cuda.allocate(0, 900)
    cuda.allocate(0, -900)
    before = torch_memory.begin(2, frozen=True, modules=modules(cuda))
    assert (before, cuda.resets) == ({0: 100, 1: 0}, [0, 1])
    cuda.allocate(0, 50)
    cuda.allocate(0, -20)
    after = torch_memory.end(2, before, frozen=True, modules=modules(cuda))
    assert after == {0: AllocatorMemory(100, 150, 130), 1: AllocatorMemory(0, 0, 0)}


def test_a_torch_that_wakes_in_the_cell_counts_from_nothing():
    cuda = StandInCuda(0, awake=False)
    before = torch_memory.begin(0, frozen=False, modules=modules(cuda))
    assert before is None
    cuda.awake = True
    cuda.allocate(0, 70)
    cuda.allocate(0, -30)
    after = torch_memory.end(1, before, frozen=True, modules=modules(cuda))
    assert after == {0: AllocatorMemory(0, 70, 40)}
    assert cuda.resets == []


@pytest.mark.parametrize("frozen", [True, False])
def test_where_torch_or_the_driver_sleeps_nothing_is_asked(frozen):
    asleep = StandInCuda(0, awake=False)
    untouched = {"torch": SimpleNamespace(cuda=asleep if frozen else StandInCuda(0))}
    assert torch_memory.begin(1, frozen=frozen, modules=untouched) is None
    assert torch_memory.end(1, None, frozen=frozen, modules=untouched) == {}
    assert asleep.resets == []


@pytest.mark.parametrize(
    "loaded", [{}, {"torch": None}, {"torch": SimpleNamespace()}, modules(SimpleNamespace())]
)
def test_without_a_whole_torch_there_are_no_numbers(loaded):
    assert torch_memory.begin(1, frozen=True, modules=loaded) is None
    assert torch_memory.end(1, None, frozen=True, modules=loaded) == {}


def test_a_device_that_torch_refuses_is_left_out():
    cuda = StandInCuda(5)
    before = torch_memory.begin(2, frozen=True, modules=modules(cuda))
    assert before == {0: 5}
    found = torch_memory.end(2, before, frozen=True, modules=modules(cuda))
    assert found == {0: AllocatorMemory(5, 5, 5)}
    assert torch_memory.end(2, None, frozen=True, modules=modules(cuda)).keys() == {0}


def test_the_real_torch_stays_asleep():
    torch = pytest.importorskip("torch")
    assert torch_memory.begin(1, frozen=True) is None
    assert torch_memory.end(1, None, frozen=True) == {}
    assert not torch.cuda.is_initialized()
