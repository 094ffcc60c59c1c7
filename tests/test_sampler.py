"""Sampling in a thread, while the test is the cell."""

import threading

import pytest

from jupyter_gpu.adapters.sampler import (
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    Cost,
    Sampler,
    pause_seconds,
)
from jupyter_gpu.core.readings import Reading

FREE = Cost(0.0, 0.0)


class Gauge:
    """Counts its readings in the memory that it reports; tells when there are enough."""

    def __init__(self, enough=1):
        self.reads, self.sensors, self.enough = 0, [], enough
        self.reached = threading.Event()
        self.energy = iter((10.0, 25.0))

    def read(self, *, sensors=True):
        self.reads += 1
        self.sensors.append(sensors)
        if self.reads >= self.enough:
            self.reached.set()
        return (Reading(self.reads, 50.0 if sensors else None),)

    def energy_joules(self):
        return (next(self.energy),)


def sampler_of(gauge, **options):
    return Sampler(lambda: gauge, 1, **options)


def thread_is_gone():
    return all(one.name != "jupyter-gpu-sampler" for one in threading.enumerate())


def test_it_reads_before_during_and_after():
    gauge = Gauge(enough=4)
    sampler = sampler_of(gauge)
    sampler.start()
    assert gauge.reads >= 1
    assert gauge.reached.wait(10)
    recording = sampler.stop()
    assert thread_is_gone()
    assert recording.reads == len(recording.samples) == gauge.reads >= 5
    assert [one.readings[0].memory_used_bytes for one in recording.samples] == list(
        range(1, gauge.reads + 1)
    )
    assert gauge.sensors[0] and gauge.sensors[-1]
    assert (recording.energy_before, recording.energy_after) == ((10.0,), (25.0,))
    assert recording.cpu_seconds > 0
    assert recording.problem is None


def test_spans_are_the_times_between_readings_of_the_sensors():
    gauge = Gauge(enough=3)
    with sampler_of(gauge) as sampler:
        assert gauge.reached.wait(10)
        samples = sampler.stop().samples
    assert samples[0].span_seconds == pytest.approx(0, abs=1e-3)
    assert samples[0].seconds == pytest.approx(0, abs=1e-3)
    read = [one for one, sensors in zip(samples, gauge.sensors, strict=True) if sensors]
    assert sum(one.span_seconds for one in read) == pytest.approx(samples[-1].seconds, abs=1e-3)
    assert all(
        one.span_seconds == 0
        for one, sensors in zip(samples, gauge.sensors, strict=True)
        if not sensors
    )


def test_a_cell_that_is_over_at_once_has_two_readings():
    gauge = Gauge()
    with sampler_of(gauge) as sampler:
        recording = sampler.stop()
    assert recording.reads == gauge.reads
    assert recording.reads >= 2
    assert recording.energy_after == (25.0,)


def test_it_tells_when_the_cell_began_and_how_far_apart_the_counters_were_read():
    gauge = Gauge(enough=3)
    with sampler_of(gauge) as sampler:
        assert gauge.reached.wait(10)
        recording = sampler.stop()
    assert 0 < recording.cell_at_seconds < recording.samples[-1].seconds
    assert 0 < recording.energy_seconds <= recording.samples[-1].seconds


def test_the_number_of_samples_kept_is_bounded_and_the_peak_survives():
    gauge = Gauge(enough=60)
    with sampler_of(gauge, most_samples=8) as sampler:
        assert gauge.reached.wait(30)
        recording = sampler.stop()
    assert len(recording.samples) <= 8
    assert recording.reads >= 60
    memory = [one.readings[0].memory_used_bytes for one in recording.samples]
    assert memory == sorted(memory)
    assert (memory[0], memory[-1]) == (1, gauge.reads)


def test_without_devices_there_is_no_thread():
    def fail():
        raise AssertionError

    with Sampler(fail, 0) as sampler:
        assert thread_is_gone()
        recording = sampler.stop()
    assert (recording.samples, recording.reads, recording.cpu_seconds) == ((), 0, None)


def test_what_goes_wrong_becomes_a_sentence():
    class Broken(Gauge):
        def read(self, *, sensors=True):
            if self.reads == 1:
                self.reached.set()
                raise RuntimeError("the card fell out")
            return super().read(sensors=sensors)

    gauge = Broken(enough=99)
    with sampler_of(gauge) as sampler:
        assert gauge.reached.wait(10)
        recording = sampler.stop()
    assert recording.problem == "the card fell out"
    assert recording.reads == 1
    assert recording.energy_after == ()

    def fail():
        raise ValueError

    with Sampler(fail, 1) as sampler:
        assert sampler.stop().problem == "ValueError"


def test_a_driver_that_does_not_answer_holds_nothing_up():
    answers = threading.Event()

    class Silent(Gauge):
        def read(self, *, sensors=True):
            answers.wait(30)
            return super().read(sensors=sensors)

    gauge = Silent()
    sampler = sampler_of(gauge, patience_seconds=0.01)
    sampler.start()
    recording = sampler.stop()
    assert "has not answered for 0.01 s" in recording.problem
    assert recording.samples == ()
    answers.set()
    sampler._thread.join(10)
    assert thread_is_gone()


def test_a_first_reading_that_comes_late_is_no_start_for_the_energy():
    answers = threading.Event()

    class Late(Gauge):
        def read(self, *, sensors=True):
            answers.wait(30)
            return super().read(sensors=sensors)

    gauge = Late()
    sampler = sampler_of(gauge, patience_seconds=0.01)
    sampler.start()
    answers.set()
    assert gauge.reached.wait(10)
    sampler._patience_seconds = 10
    recording = sampler.stop()
    assert recording.energy_before == ()
    assert recording.energy_after == (25.0,)


def test_an_interrupt_during_the_first_reading_ends_the_thread():
    gauge = Gauge()
    sampler = sampler_of(gauge)

    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            raise KeyboardInterrupt

    sampler._ready = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        sampler.start()
    sampler._thread.join(10)
    assert thread_is_gone()


@pytest.mark.parametrize(
    ("elapsed", "cost", "pause"),
    [
        (0, FREE, SHORTEST_SECONDS),
        (10, FREE, SHORTEST_SECONDS),
        (60, FREE, 0.12),
        (3600, FREE, LONGEST_SECONDS),
        (0, Cost(0.002, 0.002), 0.1),  # one part in fifty on a core
        (0, Cost(0.0, 0.1), 0.5),  # one part in five in the driver
        (3600, Cost(0.1, 0.1), 5.0),
    ],
)
def test_it_is_slower_in_long_cells_and_where_reading_is_dear(elapsed, cost, pause):
    assert pause_seconds(elapsed, cost) == pytest.approx(pause)
