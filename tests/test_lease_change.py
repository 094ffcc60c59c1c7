"""A change of the kernel's own lease: what it refuses, and that leaving it changes nothing."""

import dataclasses
import os
from fractions import Fraction

import pytest

import jupyter_gpu
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.processes import reference
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.allocator import Acquisition
from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.request import Request
from jupyter_gpu.lease_change import LeaseChange
from jupyter_gpu.own_lease import find_own_lease


@pytest.fixture
def lease(eight_gpus):
    with jupyter_gpu.acquire(2) as lease:
        lease.describe(lambda _: Owner("kernel", processes=(reference(os.getpid()),)))
        yield lease


@pytest.fixture
def change(lease, eight_gpus):
    with LeaseChange(find_own_lease(os.environ), eight_gpus) as change:
        yield change


def test_it_knows_what_the_lease_holds(change, lease):
    assert change.devices == lease.devices
    assert change.lease_id == lease.id
    assert change.owner == lease.record.owner


def test_leaving_it_changes_nothing(lease, eight_gpus, lease_directory):
    with LeaseChange(find_own_lease(os.environ), eight_gpus):
        pass
    with LeaseStore(Place(lease_directory, "given")) as store:
        (found,) = store.holdings().leases
        assert (found.record.id, found.note) == (lease.id, None)
        assert not store.is_free((), lease.record.uuids[0])


def test_another_lease_on_the_description_is_in_the_way(change, lease):
    other = lease.claim.share("abcdefabcdefabc")
    with change.lease.changing() as witness:
        with pytest.raises(GPUError, match="cannot be changed now"):
            change.require_alone(witness)
        change.require_alone(witness, "abcdefabcdefabc")
    other.close()
    with change.lease.changing() as witness:
        change.require_alone(witness)


def test_a_lock_file_that_was_replaced_is_said(change, lease_directory):
    (lease_directory / "lock").unlink()
    with change.lease.changing() as witness, pytest.raises(GPUError, match="has been replaced"):
        change.require_alone(witness)


def test_giving_up_keeps_the_lease_and_no_device(change, lease, lease_directory):
    with change.lease.changing() as witness:
        change.give_up(witness)
        assert witness.own_record(lease.id).uuids == ()
        assert witness.own_record(lease.id).owner == lease.record.owner
        assert witness.devices_on(lease.claim.fd, (), lease.record.uuids) == {}
    with LeaseStore(Place(lease_directory, "given")) as store:
        assert store.is_live(lease.id)
        assert store.holdings().leases == ()


def test_a_server_that_holds_the_lease_is_no_worker(lease, eight_gpus, program):
    server = program("print(1); input()", pass_fds=lease.pass_fds)
    server.read()
    with LeaseChange(find_own_lease(os.environ), eight_gpus) as change:
        with change.lease.changing() as witness:
            with pytest.raises(GPUError, match=f"forked may use it: {server.pid}"):
                change.give_up(witness)
    lease.describe(lambda o: dataclasses.replace(o, keeper=reference(server.pid)))
    with LeaseChange(find_own_lease(os.environ), eight_gpus) as change:
        with change.lease.changing() as witness:
            change.give_up(witness)


@pytest.fixture
def shrunk(lease, eight_gpus, lease_directory):
    """Make the lease a quarter of its first device, as ``%gpu use 1/4`` does."""

    def shrink():
        request = Request.parse({"gpus": "1/4"}, default_wait=0)
        with LeaseChange(find_own_lease(os.environ), eight_gpus) as change:
            part = Acquisition(request, change.owner, os.environ, within=change.lease)
            with part, change.lease.changing() as witness:
                change.join(witness, part.step(), keep=True)
                return witness.own_record(lease.id)

    return shrink


def test_a_smaller_share_is_written_down_with_its_caps(shrunk, lease, lease_directory):
    record = shrunk()
    assert (record.id, record.share, len(record.uuids)) == (lease.id, Fraction(1, 4), 1)
    assert "JAX takes at most" in " ".join(record.caps)
    with LeaseStore(Place(lease_directory, "given")) as store:
        assert store.free_units((), record.uuids[0]) == DEVICE_UNITS * 3 // 4


def test_workers_may_use_what_would_be_given_up_of_a_share(shrunk, lease, program):
    worker = program("print(1); input()", pass_fds=lease.pass_fds)
    worker.read()
    with pytest.raises(GPUError, match=f"forked may use it: {worker.pid}"):
        shrunk()
    worker.kill()
    assert shrunk().share == Fraction(1, 4)


def test_what_is_leased_below_keeps_a_share_from_becoming_smaller(shrunk, lease, program):
    code = "import jupyter_gpu; kept = jupyter_gpu.acquire('1/2'); print(1); input()"
    below = program(code, environ=lease.environment)
    below.read()
    with pytest.raises(GPUError, match="cannot be made a smaller share now"):
        shrunk()
    assert find_own_lease(os.environ).record.units == DEVICE_UNITS
    below.kill()
    assert shrunk().share == Fraction(1, 4)
