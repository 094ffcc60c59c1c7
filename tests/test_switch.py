"""Changing devices inside a kernel: that it is exclusive, whoever is killed and when."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernels import leases
from race.judge import overlaps_of, read_events, spans_of

import jupyter_gpu
from jupyter_gpu.adapters.processes import reference
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.request import Request
from jupyter_gpu.own_lease import find_own_lease
from jupyter_gpu.switch import Switch
from jupyter_gpu.testing import FakeMachine, fake_gpu

RACE = Path(__file__).parent / "race"


@pytest.fixture
def wished(eight_gpus):
    """Change this process's devices; what is left at the end is given back."""

    def wish(environ=None, **options):
        environ = os.environ if environ is None else environ
        owner = Owner("kernel", processes=(reference(os.getpid()),))
        switch = Switch(Request(**{"wait_seconds": 0, **options}), owner, environ)
        switched = switch.now()
        switch.put(switched, environ)
        return [device.index for device in switched.devices]

    yield wish
    while find_own_lease(os.environ) is not None:
        wish({**os.environ}, gpus=0)


def test_only_what_a_lease_sets_is_set(wished):
    environ = {**os.environ, "MINE": "1", "TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    before = dict(environ)
    assert wished(environ, gpus=2) == [0, 1]
    assert environ.pop("CUDA_VISIBLE_DEVICES") == "0,1"
    assert environ.pop("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    assert environ.pop("JUPYTER_GPU_LEASE") == leases()[0].record.id
    assert environ.pop("XLA_PYTHON_CLIENT_PREALLOCATE") == "false"
    assert environ == before
    assert dict(os.environ) != {}


def test_a_notice_of_the_start_ends_with_the_change(wished):
    environ = {**os.environ, "JUPYTER_GPU_NOTICE": "This kernel has no GPU."}
    wished(environ, gpus=1)
    assert "JUPYTER_GPU_NOTICE" not in environ


def test_trying_out_takes_nothing(wished, lease_directory):
    environ = {**os.environ}
    wished(environ, gpus=2)
    (before,) = leases()
    owner = before.record.owner
    with jupyter_gpu.acquire(5):
        Switch(Request(3, wait_seconds=0), owner, environ).try_out()
        with pytest.raises(jupyter_gpu.NoDeviceAvailable, match="0, 1  yours already"):
            Switch(Request(4, wait_seconds=0), owner, environ).try_out()
        Switch(Request(0, wait_seconds=0), owner, environ).try_out()
    assert [lease.record for lease in leases()] == [before.record]
    with jupyter_gpu.acquire(6):
        pass


def test_a_refusal_after_waiting_leaves_no_trace(wished, lease_directory):
    environ = {**os.environ}
    wished(environ, gpus=2)
    (before,) = leases()
    with jupyter_gpu.acquire(6), pytest.raises(jupyter_gpu.NoDeviceAvailable):
        wished(environ, gpus=3, wait_seconds=0.2)
    assert [lease.record for lease in leases()] == [before.record]
    assert [path.stem for path in (lease_directory / "records").glob("*.json")] == [
        before.record.id
    ]


def test_who_waits_gets_what_comes_free(wished, program):
    environ = {**os.environ}
    wished(environ, gpus=2)
    code = "import jupyter_gpu; l = jupyter_gpu.acquire(6); print(1); input(); l.release(); input()"
    holder = program(code)
    holder.read()
    holder.send("")
    assert wished(environ, gpus=3, wait_seconds=30) == [0, 1, 2]


def test_an_earlier_waiter_comes_first(wished, program, eventually):
    from kernels import queue

    environ = {**os.environ}
    wished(environ, gpus=1)
    waiter = program("import jupyter_gpu; l = jupyter_gpu.acquire(8, wait=60); print(1)")
    eventually(queue)
    with pytest.raises(jupyter_gpu.NoDeviceAvailable, match="kept for root"):
        wished(environ, gpus=2)
    assert wished(environ, gpus=1) == [0]
    waiter.kill()


def test_a_fake_machine_can_be_changed_too(lease_directory):
    machine = FakeMachine(fake_gpu(0), fake_gpu(1))
    owner = Owner("kernel", processes=(reference(os.getpid()),))
    environ = {"JUPYTER_GPU_LEASE_DIR": str(lease_directory)}
    for count in (1, 2, 0):
        switch = Switch(Request(count, wait_seconds=0), owner, environ, machine=machine)
        switch.put(switch.now(), environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "-1"


def test_kernels_that_change_and_die_and_others_that_lease_never_share_a_device(
    tmp_path, lease_directory
):
    reports = tmp_path / "reports"
    reports.mkdir()
    environ = {
        **os.environ,
        "JUPYTER_GPU_SIMULATE": "6xH200",
        "PYTHONPATH": f"{RACE.parents[1]}{os.pathsep}{RACE}",
    }

    def start(name, *arguments):
        command = [sys.executable, RACE / name, reports, *map(str, arguments)]
        return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)

    contenders = start("contender.py", "--contenders", 4, "--most", 2)
    switchers = [start("switcher.py", number, 60) for number in range(2)]
    assert [switcher.wait(120) for switcher in switchers] == [0, 0]
    (reports / "stop").touch()
    assert contenders.communicate(timeout=60)[0].strip() == b"0"
    for switcher in switchers:
        switcher.stdout.close()
    assert not (tmp_path / "failed").exists()
    spans, changes = [], 0
    for path in reports.iterdir():
        killed = tmp_path / f"{path.name}.killed"
        moment = int(killed.read_text()) if killed.exists() else None
        events = read_events(path.read_bytes())
        changes += path.name.startswith("s") and len(events)
        spans += spans_of(path.name, events, moment)
    assert overlaps_of(spans) == []
    assert changes > 100
    code = "import jupyter_gpu; print(len(jupyter_gpu.acquire('all', wait=1).devices))"
    assert json.loads(subprocess.check_output([sys.executable, "-c", code], env=environ)) == 6
