"""What the monitor knows of one moment."""

from datetime import datetime, timezone

import pytest
from support_cli import kernel, overview

from jupyter_gpu.core.devices import Process
from jupyter_gpu.core.live import Moment, Past, Point, memory_here
from jupyter_gpu.core.readings import Reading

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=timezone.utc)
ON_IT = Reading(9, processes=(Process(1, 5), Process(2, 3), Process(3, None)))


@pytest.mark.parametrize(
    ("reading", "own", "known", "here"),
    [
        (ON_IT, (1,), (1, 2, 3), 5),
        (ON_IT, (1, 2), (1, 2, 3), 8),
        (ON_IT, (1, 3), (1, 2, 3), None),
        (ON_IT, (4,), (1, 2, 3, 4), 0),
        (ON_IT, (1, 2), (2,), None),
        (Reading(9), (1,), (1,), None),
        (Reading(9, processes=()), (1,), (1,), 0),
    ],
)
def test_what_this_kernel_has_is_what_its_own_processes_have(reading, own, known, here):
    assert memory_here(reading, own, known) == here


def test_a_device_that_was_never_read_has_no_points():
    past = Past({"GPU-1": (Point(1.0),)})
    assert list(past.of("GPU-1")) == [Point(1.0)]
    assert not past.of("GPU-2")
    assert not past.of(None)


def test_own_processes_are_the_kernel_and_what_keeps_its_lease():
    assert Moment(NOW, overview()).own_pids == frozenset()
    asking = kernel(launched="0", now="0", state="open")
    assert Moment(NOW, overview(process=asking)).own_pids == {asking.pid}
