"""A change of the kernel's own lease: what it refuses, and that leaving it changes nothing."""

import dataclasses
import os

import pytest

import jupyter_gpu
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.processes import reference
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.core.leases import Owner
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
