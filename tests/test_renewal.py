"""A server looks again at a lease that its kernel may have changed, or left half changed."""

import dataclasses
import os

import pytest

import jupyter_gpu
from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.claim import Claim
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.adapters.witness import Witness
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.layout import lease_byte, new_lease_id
from jupyter_gpu.core.request import Request
from jupyter_gpu.renewal import renew


@pytest.fixture
def place(lease_directory):
    return Place(lease_directory, "given")


@pytest.fixture
def kernels_handle():
    """A handle as the kernel has it: a claim on a copy of the descriptor."""
    made = []

    def make(lease):
        claim = Claim(os.dup(lease.claim.fd), lease.id)
        claim.correct(lease.claim.holding)
        made.append(claim)
        return claim

    yield make
    for claim in made:
        claim.close()


def uuids(inventory, *indices):
    return tuple(inventory.devices[index].uuid for index in indices)


def write(place, lease, inventory, *indices):
    record = dataclasses.replace(
        lease.record, uuids=uuids(inventory, *indices), indices=indices
    )
    with Witness(place) as witness:
        witness.publish(record)


def indices(lease):
    return [device.index for device in lease.devices]


def free_indices(place, inventory):
    with LeaseStore(place) as store:
        return [d.index for d in inventory.devices if store.is_free((), d.uuid)]


def renewed(lease, identifiers="auto"):
    renew(lease, os.environ, identifiers)
    return indices(lease)


def test_what_nobody_has_changed_stays_as_it_is(eight_gpus):
    with jupyter_gpu.acquire(2) as lease:
        environment = lease.environment
        assert renewed(lease) == [0, 1]
        assert lease.environment == environment


@pytest.mark.parametrize(
    ("identifiers", "by"), [("auto", lambda d: str(d.index)), ("uuid", lambda d: d.uuid)]
)
def test_what_the_kernel_has_changed_is_taken_up(
    eight_gpus, place, kernels_handle, identifiers, by
):
    with jupyter_gpu.acquire(2) as lease:
        kernel = kernels_handle(lease)
        assert kernel.take(uuids(eight_gpus, 5, 3))
        write(place, lease, eight_gpus, 5, 3)
        kernel.keep_only(uuids(eight_gpus, 5, 3))
        assert renewed(lease, identifiers) == [5, 3]
        wanted = ",".join(by(eight_gpus.devices[index]) for index in (5, 3))
        assert lease.environment["CUDA_VISIBLE_DEVICES"] == wanted
        assert lease.record.indices == (5, 3)
        assert lease.claim.uuids == uuids(eight_gpus, 5, 3)


def test_a_kernel_that_gave_everything_up_has_nothing(eight_gpus, place, kernels_handle):
    with jupyter_gpu.acquire(2) as lease:
        kernel = kernels_handle(lease)
        write(place, lease, eight_gpus)
        kernel.keep_only(())
        assert renewed(lease) == []
        assert lease.environment["CUDA_VISIBLE_DEVICES"] == "-1"
        assert "JUPYTER_GPU_LEASE" not in lease.environment
        assert int(lease.environment["JUPYTER_GPU_LEASE_FD"]) in lease.pass_fds
        assert not lease.released


def test_a_record_that_lies_gives_no_device(eight_gpus, place):
    with jupyter_gpu.acquire(2) as lease, jupyter_gpu.acquire(2):
        write(place, lease, eight_gpus, 2, 3)
        assert renewed(lease) == [0, 1]
        write(place, lease, eight_gpus, 6, 7)
        assert renewed(lease) == [0, 1]
    assert free_indices(place, eight_gpus) == list(range(8))


def test_without_a_record_what_is_held_counts(eight_gpus, place, kernels_handle):
    with jupyter_gpu.acquire(2) as lease:
        kernel = kernels_handle(lease)
        kernel.take(uuids(eight_gpus, 4))
        kernel.keep_only(uuids(eight_gpus, 4))
        with Witness(place) as witness:
            witness.remove_record(lease.id)
        assert renewed(lease) == [4]


def test_a_device_that_was_unlocked_and_is_anothers_is_not_kept(eight_gpus, place, kernels_handle):
    with jupyter_gpu.acquire(2) as lease:
        kernels_handle(lease).keep_only(uuids(eight_gpus, 1))
        with jupyter_gpu.acquire(1) as other:
            assert indices(other) == [0]
            assert renewed(lease) == [1]


def test_what_was_only_begun_is_undone(eight_gpus, place, kernels_handle):
    with jupyter_gpu.acquire(2) as lease:
        stray = new_lease_id()
        kernel = kernels_handle(lease)
        assert locks.try_lock(kernel.fd, lease_byte(stray))
        kernel.line_up()
        kernel.take(uuids(eight_gpus, 2, 3))
        assert renewed(lease) == [0, 1]
        assert free_indices(place, eight_gpus) == [2, 3, 4, 5, 6, 7]
        with LeaseStore(place) as store:
            assert not store.is_live(stray)
            assert not store.anyone_waits()


def test_what_was_nearly_done_is_done(eight_gpus, place, kernels_handle):
    with jupyter_gpu.acquire(2) as lease:
        kernel = kernels_handle(lease)
        locks.try_lock(kernel.fd, lease_byte(new_lease_id()))
        kernel.take(uuids(eight_gpus, 2, 3))
        write(place, lease, eight_gpus, 2, 3)
        assert renewed(lease) == [2, 3]
        assert free_indices(place, eight_gpus) == [0, 1, 4, 5, 6, 7]


def test_a_lock_file_that_was_replaced_changes_nothing(eight_gpus, place):
    with jupyter_gpu.acquire(2) as lease:
        place.lock_path.unlink()
        assert renewed(lease) == [0, 1]


def test_a_right_to_change_that_is_locked_is_said(eight_gpus, place):
    with jupyter_gpu.acquire(2) as lease, Witness(place) as somebody:
        assert somebody.try_change(lease.id)
        with pytest.raises(StoreError, match="locked its right to change"):
            renew(lease, os.environ, "auto")
        assert indices(lease) == [0, 1]


def test_a_taker_over_gets_what_the_kernel_has_by_now(eight_gpus, place, kernels_handle):
    from jupyter_gpu.allocator import Acquisition, acquire_now
    from jupyter_gpu.core.leases import Owner

    with jupyter_gpu.acquire(1) as lease:
        kernel = kernels_handle(lease)
        kernel.take(uuids(eight_gpus, 6))
        write(place, lease, eight_gpus, 6)
        kernel.keep_only(uuids(eight_gpus, 6))
        request = Request(gpus=1, wait_seconds=0)
        taken = acquire_now(Acquisition(request, Owner("kernel"), os.environ, takeover=lease))
        assert indices(taken) == [6]
        lease.release()
        assert free_indices(place, eight_gpus) == [0, 1, 2, 3, 4, 5, 7]
        taken.release()


@pytest.mark.parametrize(("before", "after"), [(1, "1/4"), ("1/4", 1), ("1/4", "1/2")])
def test_another_part_of_the_same_device_is_taken_up(
    eight_gpus, place, kernels_handle, before, after
):
    request = Request.parse({"gpus": after})
    with jupyter_gpu.acquire(before) as lease:
        kernel = kernels_handle(lease)
        kernel.take(uuids(eight_gpus, 0), request.units)
        with Witness(place) as witness:
            witness.publish(dataclasses.replace(lease.record, request=request, units=request.units))
        kernel.keep_only(uuids(eight_gpus, 0), request.units)
        assert renewed(lease) == [0]
        assert lease.claim.holding == {eight_gpus.devices[0].uuid: request.units}
        part = None if after == 1 else str(float(request.share))
        assert lease.environment.get("XLA_PYTHON_CLIENT_MEM_FRACTION") == part
        assert bool(lease.record.caps) == (after != 1)
        assert lease.record.units == request.units


def test_another_cap_on_the_same_share_is_taken_up(eight_gpus, place):
    request = Request.parse({"gpus": "1/4", "memory_cap": "none"})
    with jupyter_gpu.acquire("1/4") as lease:
        with Witness(place) as witness:
            witness.publish(dataclasses.replace(lease.record, request=request))
        assert renewed(lease) == [0]
        assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in lease.environment


def test_what_was_given_up_in_writing_only_is_unlocked(eight_gpus, place):
    with jupyter_gpu.acquire(2) as lease:
        write(place, lease, eight_gpus)
        assert renewed(lease) == []
        assert free_indices(place, eight_gpus) == list(range(8))
