"""The shipped fakes: a machine that a test sets, and leases on it."""

import pytest

from jupyter_gpu import NoDeviceAvailable
from jupyter_gpu.testing import FakeMachine, fake_gpu, fake_lease


def test_a_fake_machine_leases_like_a_real_one(lease_directory):
    machine = FakeMachine(fake_gpu(0), fake_gpu(1))
    with fake_lease(machine, lease_directory, gpus=1) as one:
        assert [device.index for device in one.devices] == [0]
        with fake_lease(machine, lease_directory, gpus=1) as two:
            assert [device.index for device in two.devices] == [1]
            with pytest.raises(NoDeviceAvailable, match="No GPU is free"):
                fake_lease(machine, lease_directory, gpus=1)


def test_its_devices_may_change_between_two_reads(lease_directory):
    machine = FakeMachine(fake_gpu(0))
    machine.set(fake_gpu(0, problem="lost"), fake_gpu(1))
    with fake_lease(machine, lease_directory) as lease:
        assert [device.index for device in lease.devices] == [1]
    assert machine.reads >= 2
