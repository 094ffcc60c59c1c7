import os

from support_cli import device, inventory, kernel, lease, overview

import jupyter_gpu
from jupyter_gpu.adapters.machine import find_machine
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.overview import read_overview, read_value


def test_it_has_the_machine_what_is_visible_and_the_leases(eight_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    with jupyter_gpu.acquire(2) as held:
        seen = read_overview(os.environ)
    assert seen.inventory == eight_gpus
    assert [device.index for device in seen.visible.devices] == [2, 0]
    assert [one.record.id for one in seen.holdings.leases] == [held.id]
    assert seen.leasing.exclusive


def test_the_memory_on_a_leases_devices_is_what_is_known_of_it():
    machine = inventory(
        device(0, memory_used_bytes=3), device(1, memory_used_bytes=4), device(2, memory_used_bytes=None)
    )
    seen = overview(machine)
    assert seen.memory_used_on(lease("a", (0, 1))) == 7
    assert seen.memory_used_on(lease("a", (1, 2))) == 4
    assert seen.memory_used_on(lease("a", (2,))) is None
    assert seen.memory_used_on(lease("a", (9,))) is None


def test_nobody_has_leased_anything_where_no_lease_directory_exists(eight_gpus, lease_directory):
    seen = read_overview(os.environ)
    assert seen.holdings.leases == ()
    assert seen.leasing.problem is None
    assert not lease_directory.exists()


def test_a_lease_directory_that_cannot_be_used_is_a_sentence(eight_gpus, lease_directory):
    lease_directory.write_text("")
    seen = read_overview(os.environ)
    assert len(seen.inventory.devices) == 8
    assert "is not a directory" in seen.leasing.problem
    assert not seen.leasing.exclusive


def test_a_simulation_that_cannot_be_read_is_a_sentence(monkeypatch):
    monkeypatch.setenv("JUPYTER_GPU_SIMULATE", "4xH2OO")
    seen = read_overview(os.environ)
    assert seen.inventory.source == "none"
    assert "H2OO" in seen.inventory.problem


def test_an_open_machine_is_read_and_left_open(eight_gpus):
    class Watched:
        def __init__(self):
            self.read_with, self.machine = [], find_machine(os.environ)

        def read(self, *, sensors=True):
            self.read_with.append(sensors)
            return self.machine.read(sensors=sensors)

    machine = Watched()
    assert read_overview(os.environ, machine=machine, sensors=False).inventory == eight_gpus
    assert machine.read_with == [False]


def test_processes_on_a_device_are_named_where_they_exist_here(simulate):
    ours, gone = os.getpid(), 2**22 - 1
    simulate({"gpus": [{"name": "NVIDIA L4", "processes": [{"pid": ours}, {"pid": gone}]}]})
    seen = read_overview(os.environ)
    assert list(seen.known) == [ours]
    assert "python" in seen.known[ours].command


def test_the_lease_of_the_kernel_that_asks_is_found_by_its_id():
    leases = (lease("a", (0,)), lease("b", (1,)))
    asked = overview(leases=leases, process=kernel(lease_id="b" * 15))
    assert asked.lease is leases[1]
    assert overview(leases=leases, process=kernel(lease_id="c" * 15)).lease is None
    assert overview(leases=leases).lease is None
    assert isinstance(asked, Overview)


def test_a_device_outside_this_environments_pool_is_noted_and_mapped_all_the_same(eight_gpus):
    found = read_value("5,1", eight_gpus, {"CUDA_VISIBLE_DEVICES": "1,2"})
    assert [device.index for device in found.devices] == [5, 1]
    assert any("on this machine but not in this pool" in note for note in found.notes)
    for environ in ({}, {"CUDA_VISIBLE_DEVICES": "5,1"}, {"CUDA_VISIBLE_DEVICES": "0,1,5"}):
        assert read_value("5,1", eight_gpus, environ).notes == ()
