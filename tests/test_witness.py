"""A witness tells what one description holds, and takes nothing."""

import os

import pytest

import jupyter_gpu
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.adapters.witness import Witness
from jupyter_gpu.core.errors import StoreError

pytestmark = pytest.mark.usefixtures("eight_gpus")


@pytest.fixture
def place(lease_directory):
    return Place(lease_directory, "given")


@pytest.fixture
def witness(place):
    LeaseStore(place, write=True).close()
    with Witness(place) as witness:
        yield witness


def test_it_tells_apart_what_two_descriptions_hold(witness):
    with jupyter_gpu.acquire(2) as one, jupyter_gpu.acquire(3) as two:
        uuids = (*one.record.uuids, *two.record.uuids)
        for lease in (one, two):
            fd = lease.claim.fd
            assert witness.leases_on(fd) == (lease.id,)
            assert witness.devices_on(fd, (), uuids) == dict.fromkeys(lease.record.uuids, 27_720)
            assert witness.tickets_on(fd) == ()


def test_a_copy_of_a_descriptor_is_the_same_description(witness):
    with jupyter_gpu.acquire(1) as lease:
        copy = os.dup(lease.claim.fd)
        try:
            assert witness.leases_on(copy) == (lease.id,)
        finally:
            os.close(copy)


def test_what_nobody_holds_is_nobodys(witness, place, eight_gpus):
    with jupyter_gpu.acquire(1) as lease:
        assert witness.devices_on(lease.claim.fd, (), (eight_gpus.devices[7].uuid,)) == {}
    with LeaseStore(place) as store:
        assert not store.is_live(lease.id)


def test_a_place_in_the_queue_is_seen(witness):
    with jupyter_gpu.acquire(1) as lease:
        lease.claim.line_up()
        assert len(witness.tickets_on(lease.claim.fd)) == 1
        lease.claim.leave_queue()


def test_only_one_may_change_a_lease_and_its_end_lets_the_next_one(witness, place):
    with jupyter_gpu.acquire(1) as lease, jupyter_gpu.acquire(1) as other:
        with Witness(place) as second:
            assert second.try_change(lease.id)
            assert second.try_change(lease.id)
            assert not witness.try_change(lease.id)
            assert witness.try_change(other.id)
        assert witness.try_change(lease.id)
        with LeaseStore(place) as store:
            assert len(store.holdings().leases) == 2


def test_it_reads_and_writes_records_of_this_user(witness):
    with jupyter_gpu.acquire(1) as lease:
        assert witness.own_record(lease.id).uuids == lease.record.uuids
        witness.remove_record(lease.id)
        assert witness.own_record(lease.id) is None
        witness.publish(lease.record)
        assert witness.own_record(lease.id).uuids == lease.record.uuids


def test_another_users_record_is_not_believed(witness, place, needs_root):
    with jupyter_gpu.acquire(1) as lease:
        os.chown(place.directory / "records" / f"{lease.id}.json", 65534, 65534)
        assert witness.own_record(lease.id) is None


def test_a_descriptor_of_a_lock_file_that_was_replaced_is_not_known(witness, place):
    with jupyter_gpu.acquire(1) as lease:
        assert witness.knows(lease.claim.fd)
        place.lock_path.unlink()
        with Witness(place) as fresh:
            assert not fresh.knows(lease.claim.fd)
        assert witness.leases_on(lease.claim.fd) == (lease.id,)


def test_a_directory_that_is_gone_is_a_sentence(tmp_path):
    with pytest.raises(StoreError, match="is gone"):
        Witness(Place(tmp_path / "nothing", "given"))
