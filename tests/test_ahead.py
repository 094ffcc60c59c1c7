import threading

import pytest
from support_cli import inventory

from jupyter_gpu.adapters.ahead import AheadMachine
from jupyter_gpu.core.errors import SimulationError


class Slow:
    """A machine that answers when it is let."""

    def __init__(self, error=None):
        self.let, self.begun, self.closed, self.error = (
            threading.Event(),
            threading.Event(),
            False,
            error,
        )

    def read(self, *, sensors=True):
        assert sensors
        self.begun.set()
        assert self.let.wait(10)
        if self.error is not None:
            raise self.error
        return inventory()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True


def test_it_is_read_before_it_is_asked_for_and_closed_at_the_end():
    slow = Slow()
    with AheadMachine(slow) as machine:
        assert slow.begun.wait(10)
        slow.let.set()
        assert machine.read() == inventory()
        assert machine.read(sensors=False) == inventory()
        assert not slow.closed
    assert slow.closed


def test_what_goes_wrong_is_raised_where_it_is_asked_for():
    slow = Slow(SimulationError("no such machine"))
    slow.let.set()
    with AheadMachine(slow) as machine, pytest.raises(SimulationError, match="no such machine"):
        machine.read()


def test_an_interrupted_program_does_not_wait_for_it():
    slow = Slow()
    with pytest.raises(KeyboardInterrupt), AheadMachine(slow):
        raise KeyboardInterrupt
    slow.let.set()
