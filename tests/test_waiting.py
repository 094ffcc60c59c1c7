"""Waiting, where something is in the way: dead waiters' records, holds, limits, signals."""

import json
import os
import resource
import signal
import sys
import time

import pytest

import jupyter_gpu
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.records import records_path
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.allocator import Acquisition
from jupyter_gpu.core.errors import NoDeviceAvailable, StoreError
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.request import Request

NOBODY = 65534
NEST = """
import os, sys, jupyter_gpu
outer = jupyter_gpu.acquire("1/4", devices=[0])
os.environ.update(outer.environment)
pid = os.fork()
if pid == 0:
    inner = jupyter_gpu.acquire("1/8")
    outer.claim.close()
    print("nested", flush=True)
    sys.stdin.read()
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.fixture(autouse=True)
def four_gpus(simulate):
    simulate("4xH200")


@pytest.fixture
def place(lease_directory):
    return Place(lease_directory, "given")


@pytest.fixture
def asking():
    """A function that begins an acquisition; what is left of it is given up at the end."""
    made = []

    def ask(amount, wait="60s", **options):
        request = Request.parse({"gpus": amount, "wait": wait, **options})
        made.append(Acquisition(request, Owner("api", command="asks"), os.environ))
        return made[-1]

    yield ask
    for acquisition in made:
        acquisition.close()


def queue(place):
    with LeaseStore(place) as store:
        return store.holdings().waiters


STRANGER = """
import os, sys
import jupyter_gpu, jupyter_gpu.allocator, jupyter_gpu.adapters.grant_log
import jupyter_gpu.core.refusal, jupyter_gpu.core.share_caps
try:
    jupyter_gpu.acquire(1)
except Exception:
    os.setgroups([])
os.setgid(1234), os.setuid(1234)
print("ready", flush=True)
sys.stdin.readline()
try:
    jupyter_gpu.acquire(1, wait="1s")
except Exception as error:
    print(type(error).__name__, str(error).splitlines()[0], flush=True)
"""


def test_another_user_waits_behind_what_a_killed_waiter_has_left(place, program, needs_root):
    with jupyter_gpu.acquire(4):
        stranger = program(STRANGER)
        assert stranger.read() == "ready"
        for number in range(3):
            path = records_path(place) / f"waiting-{number}.json"
            path.write_text("{}")
            os.chown(path, NOBODY, NOBODY)
        stranger.send("go")
        assert stranger.read().startswith("NoDeviceAvailable No GPU is free")


def test_a_lease_that_outlived_its_share_blocks_its_device_alone(place, program, eventually):
    nest = program(NEST)
    assert nest.read() == "nested"
    nest.kill()

    def outer_gone():
        with LeaseStore(place) as store:
            return all(lease.record.ancestors for lease in store.holdings().leases)

    eventually(outer_gone)
    with LeaseStore(place) as store:
        (left,) = store.holdings().leases
    try:
        with jupyter_gpu.acquire("1/4") as lease:
            assert [device.index for device in lease.devices] == [1]
        with pytest.raises(NoDeviceAvailable):
            jupyter_gpu.acquire("1/4", devices=[0])
    finally:
        for process in left.record.owner.processes:
            os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: _nothing_held(place))
    jupyter_gpu.acquire("1/4", devices=[0]).release()


def _nothing_held(place):
    with LeaseStore(place) as store:
        return not store.holdings().leases


def test_who_waits_for_a_device_on_hold_keeps_nobody_from_the_others(place, asking, capsys):
    from jupyter_gpu.cli import main

    assert main(["hold", "3", "--reason", "fan"]) == 0
    capsys.readouterr()
    everything = asking(4)
    assert everything.step() is None
    with jupyter_gpu.acquire(1) as lease:
        assert [device.index for device in lease.devices] == [0]


def test_a_list_of_holds_that_is_broken_grants_nothing(place):
    with jupyter_gpu.acquire(1):
        (place.directory / "holds.json").write_text("{")
    with pytest.raises(StoreError, match="GPUs cannot be leased"):
        jupyter_gpu.acquire(1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_run_that_is_ended_while_it_waits_leaves_nothing(place, eventually, number):
    import subprocess

    with jupyter_gpu.acquire(4):
        words = [sys.executable, "-m", "jupyter_gpu", "run", "--wait", "60s", "--", "true"]
        waiting = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: queue(place))
            waiting.send_signal(number)
            assert waiting.wait(timeout=20) == 128 + number
        finally:
            waiting.kill()
            waiting.wait()
        assert queue(place) == ()
        assert [n for n in os.listdir(records_path(place)) if n.startswith("waiting")] == []


def test_who_is_held_back_by_a_limit_costs_next_to_nothing(
    place, asking, tmp_path, monkeypatch
):
    rules = tmp_path / "rules.toml"
    rules.write_text("max_devices_per_user = 1\n")
    monkeypatch.setenv("JUPYTER_GPU_CONFIG", str(rules))
    with jupyter_gpu.acquire(1) as held:
        waiters = [asking(1) for _ in range(10)]
        for waiter in waiters:
            assert waiter.step() is None
        before = resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(20):
            for waiter in waiters:
                assert waiter.step() is None
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert used / 200 < 0.002
        held.release()
        deadline = time.monotonic() + 10
        lease = None
        while lease is None and time.monotonic() < deadline:
            lease = waiters[0].step()
        assert lease is not None
        assert all(waiter.step() is None for waiter in waiters[1:])
        lease.release()


def test_rules_that_break_and_are_mended_cost_nobody_their_place(
    place, asking, tmp_path, monkeypatch
):
    rules = tmp_path / "rules.toml"
    rules.write_text("")
    monkeypatch.setenv("JUPYTER_GPU_CONFIG", str(rules))
    held = jupyter_gpu.acquire(4)
    waiter = asking(1)
    assert waiter.step() is None
    rules.write_text("x=")
    held.release()
    for _ in range(5):
        assert waiter.step() is None
    rules.write_text("")
    deadline = time.monotonic() + 10
    lease = None
    while lease is None and time.monotonic() < deadline:
        lease = waiter.step()
    assert lease is not None
    lease.release()


def test_waiting_records_are_json_of_the_documented_form(place, asking):
    with jupyter_gpu.acquire(4):
        asking("1/4").step()
        (name,) = [n for n in os.listdir(records_path(place)) if n.startswith("waiting")]
        data = json.loads((records_path(place) / name).read_text())
        assert data["request"] == {"gpus": "1/4"}
        assert data["ticket"] == 0
