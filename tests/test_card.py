"""Free on the card: what stands against leasing a device whatever the locks say."""

import dataclasses
from collections import namedtuple

import pytest

from jupyter_gpu.core.card import UNEXPLAINED_MEMORY_BYTES, obstacle
from jupyter_gpu.core.devices import Device, Process

GIB = 2**30
Known = namedtuple("Known", "user command")  # noqa: PYI024 - two words
IDLE = Device(0, "GPU-a", "NVIDIA H200", memory_total_bytes=140 * GIB, memory_used_bytes=0)
BEN = Known("ben", "python train.py")


def with_processes(*pids, used=10 * GIB, **facts):
    processes = tuple(Process(pid, GIB) for pid in pids)
    return dataclasses.replace(IDLE, processes=processes, memory_used_bytes=used, **facts)


def test_nothing_stands_against_an_idle_device():
    assert obstacle(IDLE, {}) is None


def test_a_device_that_tells_nothing_about_memory_is_taken_at_its_word():
    silent = dataclasses.replace(IDLE, memory_used_bytes=None)
    assert obstacle(silent, {}, min_free_memory_bytes=GIB) is None


@pytest.mark.parametrize(
    ("device", "known", "sentence", "passing"),
    [
        (dataclasses.replace(IDLE, problem="it is lost"), {}, "it is lost", False),
        (dataclasses.replace(IDLE, exclusive=True), {}, "exclusive-process mode", False),
        (with_processes(5), {5: BEN}, "without a lease by ben: 5 python train.py", False),
        (with_processes(5), {}, "a process that cannot be seen", True),
        (with_processes(used=10 * GIB), {}, "10.0 GiB in use by no process", True),
        (with_processes(5, 6), {5: BEN}, "without a lease by ben", False),
    ],
)
def test_what_stands_against_it_is_said_in_words(device, known, sentence, passing):
    found = obstacle(device, known)
    assert sentence in found.sentence
    assert found.passing == passing


def test_ones_own_processes_do_not_count():
    assert obstacle(with_processes(5), {5: BEN}, ours=(5,)) is None


def test_the_mps_server_does_not_count():
    server = Known("root", "/usr/bin/nvidia-cuda-mps-server -force-tegra")
    assert obstacle(with_processes(5), {5: server}) is None


def test_what_the_driver_keeps_for_itself_does_not_count():
    used = with_processes(used=UNEXPLAINED_MEMORY_BYTES)
    assert obstacle(used, {}) is None
    assert obstacle(dataclasses.replace(used, memory_used_bytes=UNEXPLAINED_MEMORY_BYTES + 1), {})


def test_too_little_free_memory_stands_against_it():
    used = dataclasses.replace(IDLE, memory_used_bytes=GIB // 2)
    assert obstacle(used, {}, min_free_memory_bytes=139 * GIB) is None
    found = obstacle(used, {}, min_free_memory_bytes=140 * GIB)
    assert found.sentence == "only 139.5 GiB free"
    assert not found.passing
