"""The one meter of a server, the use of one's own lease, and what an idle time is made of."""

from __future__ import annotations

import dataclasses
import os
import threading
from datetime import datetime, timezone

import pytest
from kernels import queue
from traitlets.config import Config

import jupyter_gpu
from jupyter_gpu.core.errors import SimulationError
from jupyter_gpu.idle import (
    IdleTimes,
    LoadMeter,
    idle_warning_seconds,
    own_use,
    site_times,
)
from jupyter_gpu.testing import FakeMachine, fake_gpu

pytestmark = pytest.mark.usefixtures("no_rules")
ZERO, ONE, TWO = (fake_gpu(index, utilization_percent=10 * index) for index in range(3))
UNKNOWN = fake_gpu(3)


@pytest.fixture
def no_rules(tmp_path, monkeypatch):
    """This computer may have a file of rules."""
    rules(tmp_path, monkeypatch, "")


class Clock:
    seconds = 100.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def machine():
    return FakeMachine(ZERO, ONE, TWO, UNKNOWN)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def meter(machine, clock):
    return LoadMeter({}, find=lambda _: machine, clock=clock)


def percents(meter, *devices):
    look = meter.latest([device.uuid for device in devices])
    return None if look is None else look.percents


def test_nothing_is_read_before_somebody_asks(meter, machine):
    meter.look()
    assert machine.reads == 0
    assert percents(meter, ZERO) is None


def test_one_look_serves_every_kernel_until_the_next_is_due(meter, clock):
    assert meter.want([ZERO.uuid])
    assert meter.want([ONE.uuid, UNKNOWN.uuid])
    before = datetime.now(timezone.utc)
    meter.look()
    assert percents(meter, ZERO) == (0,)
    assert percents(meter, UNKNOWN, ONE) == (None, 10)
    assert percents(meter, TWO) is None
    look = meter.latest([ZERO.uuid])
    assert before <= look.at <= datetime.now(timezone.utc)
    clock.seconds += 9
    assert not meter.want([ZERO.uuid])
    clock.seconds += 1
    assert meter.want([ZERO.uuid])


def test_a_device_that_nobody_asks_for_any_more_is_not_read(meter, machine, clock):
    asked = []
    real = machine.gauge
    machine.gauge = lambda uuids: asked.append(set(uuids)) or real(uuids)
    meter.want([ZERO.uuid, ONE.uuid])
    meter.look()
    for _ in range(4):
        clock.seconds += 10
        meter.want([ONE.uuid])
        meter.look()
    assert asked[0] == {ZERO.uuid, ONE.uuid}
    assert asked[-1] == {ONE.uuid}
    assert percents(meter, ZERO) is None


def test_a_device_that_is_gone_is_unknown(meter, machine):
    meter.want([ZERO.uuid])
    machine.set(ONE)
    meter.look()
    assert percents(meter, ZERO) == (None,)


def test_a_machine_that_cannot_be_read_is_unknown():
    def find(_):
        raise SimulationError("half a file")

    meter = LoadMeter({}, find=find)
    meter.want([ZERO.uuid])
    meter.look()
    assert percents(meter, ZERO) == (None,)


def test_a_driver_that_does_not_answer_holds_up_one_thread_only(meter, machine):
    asked, answers = threading.Event(), threading.Event()
    gauge = machine.gauge

    def hang(uuids):
        asked.set()
        assert answers.wait(10)
        return gauge(uuids)

    machine.gauge = hang
    meter.want([ZERO.uuid])
    first = threading.Thread(target=meter.look)
    first.start()
    assert asked.wait(10)
    assert not meter.want([ZERO.uuid])
    meter.look()
    assert percents(meter, ZERO) is None
    answers.set()
    first.join(10)
    assert percents(meter, ZERO) == (0,)


@pytest.mark.usefixtures("eight_gpus")
def test_without_a_kernels_lease_nothing_is_held():
    assert own_use(os.environ) is None
    with jupyter_gpu.acquire(1):
        assert own_use(os.environ) is None, "the person's own code has taken that one"


@pytest.mark.usefixtures("eight_gpus")
def test_the_own_lease_is_told_with_who_waits_for_its_devices(program, eventually):
    waits = "import jupyter_gpu; jupyter_gpu.acquire(1, devices=[{}], wait=60)"
    with jupyter_gpu.acquire(1, devices=[2]) as lease, jupyter_gpu.acquire(1, devices=[3]):
        lease.describe(lambda owner: dataclasses.replace(owner, kind="kernel"))
        environ = {**os.environ, "JUPYTER_GPU_LEASE": lease.id}
        assert own_use(environ).record.id == lease.id
        assert own_use(environ).record.indices == (2,)
        assert own_use(environ).waiting == 0
        program(waits.format(2))
        eventually(lambda: own_use(environ).waiting == 1)
        program(waits.format(3))
        eventually(lambda: len(queue()) == 2)
        assert own_use(environ).waiting == 1


def rules(tmp_path, monkeypatch, text):
    path = tmp_path / "rules.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("JUPYTER_GPU_CONFIG", str(path))


def config(**options):
    return Config({"JupyterGPU": options})


@pytest.mark.parametrize(
    ("site", "own", "seconds"),
    [
        ("", {}, None),
        ("", {"idle_warning": "2h"}, 7200),
        ("", {"idle_warning": 90}, 90),
        ("", {"idle_shutdown": "2h"}, None),
        ('idle_warning = "30m"', {}, 1800),
        ('idle_warning = "30m"', {"idle_warning": "2h"}, 1800),
        ('idle_warning = "3h"', {"idle_warning": "2h"}, 7200),
        ('idle_warning = "none"', {"idle_warning": "none"}, None),
        # The extension says so in the server's log, and a kernel starts all the same.
        ('idle_warning = "30m"', {"idle_warning": "soon"}, 1800),
        ("idle_warning = 0", {"idle_warning": "2h"}, 7200),
    ],
)
def test_the_shorter_of_the_servers_and_the_sites_time_counts(
    simulate, tmp_path, monkeypatch, site, own, seconds
):
    simulate("2xH200")
    rules(tmp_path, monkeypatch, site)
    assert idle_warning_seconds(config(**own), os.environ) == seconds


def test_without_configuration_and_rules_nobody_is_told(simulate):
    simulate("2xH200")
    assert idle_warning_seconds(Config(), os.environ) is None
    assert idle_warning_seconds({}, os.environ) is None
    assert site_times(os.environ) == IdleTimes(None, None)


def test_the_sites_times_are_those_of_its_rules(simulate, tmp_path, monkeypatch):
    simulate("2xH200")
    rules(tmp_path, monkeypatch, 'idle_warning = "1h"\nidle_shutdown = "8h"')
    assert site_times(os.environ) == IdleTimes(3600, 28800)
