"""The pool: which devices this program may lease at all."""

import os

import pytest

import jupyter_gpu
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.records import records_path
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.pool import Limit, find_pool, limits_of, read_limits, written_limits

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def place(lease_directory):
    return Place(lease_directory, "given")


@pytest.fixture
def store(place):
    with LeaseStore(place, write=True) as opened:
        yield opened


def pool_of(inventory, *values, environ=None, store=None):
    limits = tuple(Limit(value, "a test") for value in values)
    return find_pool(inventory, limits, environ or {}, store)


def indices(pool):
    return [device.index for device in pool.devices]


@pytest.mark.parametrize(
    ("environ", "kernelspec", "limits"),
    [
        ({}, None, []),
        ({VISIBLE: "0,1"}, None, [("0,1", "the environment")]),
        ({}, {VISIBLE: ""}, [("", "the kernelspec's env")]),
        (
            {VISIBLE: "0,1"},
            {VISIBLE: "1", "OTHER": "2"},
            [("0,1", "the environment"), ("1", "the kernelspec's env")],
        ),
    ],
)
def test_limits_come_from_the_environment_and_the_kernelspec(environ, kernelspec, limits):
    assert [(limit.value, limit.source) for limit in limits_of(environ, kernelspec)] == limits


def test_without_limits_the_pool_is_the_machine(eight_gpus):
    pool = pool_of(eight_gpus)
    assert pool.devices == eight_gpus.devices
    assert (pool.ancestors, pool.limited_by, pool.relatives) == ((), None, ())


@pytest.mark.parametrize(
    ("values", "left"),
    [
        (["0,1"], [0, 1]),
        (["3,1"], [1, 3]),
        (["0,1,2", "2,1,5"], [1, 2]),
        ([""], []),
        (["-1"], []),
        (["0,0"], []),
        (["5,99,6"], [5]),
        (["GPU-f80415fc"], [0]),
        (["none"], []),
    ],
)
def test_a_value_limits_the_pool_as_the_driver_would(eight_gpus, values, left):
    pool = pool_of(eight_gpus, *values)
    assert indices(pool) == left
    for value in values:
        assert f"CUDA_VISIBLE_DEVICES={value} in a test" in pool.limited_by


def test_a_limit_that_leaves_everything_is_not_mentioned(eight_gpus):
    assert pool_of(eight_gpus, "0,1,2,3,4,5,6,7").limited_by is None


def test_under_a_lease_the_pool_is_what_it_holds(eight_gpus, store):
    with jupyter_gpu.acquire(2, devices=[5, 3, 4]) as above:
        pool = pool_of(eight_gpus, environ=above.environment, store=store)
        assert indices(pool) == [3, 5]
        assert pool.ancestors == (above.id,)
        assert pool.limited_by == "the lease that this program runs under"
        assert pool.relatives == (os.getpid(),)


def test_under_a_lease_that_has_ended_the_pool_is_the_machine(eight_gpus, store):
    with jupyter_gpu.acquire(2) as above:
        environ = above.environment
    assert pool_of(eight_gpus, environ=environ, store=store).devices == eight_gpus.devices


@pytest.mark.parametrize("name", ["", "nonsense", "../../etc/passwd", "a" * 15])
def test_a_lease_that_is_none_does_not_matter(eight_gpus, store, name):
    environ = {"JUPYTER_GPU_LEASE": name}
    assert pool_of(eight_gpus, environ=environ, store=store).devices == eight_gpus.devices


def test_under_a_lease_whose_record_is_lost_nothing_is_parted(eight_gpus, store, place):
    """Otherwise a program below it could lease what others hold: nobody knows what is its."""
    with jupyter_gpu.acquire(2) as above:
        (records_path(place) / f"{above.id}.json").unlink()
        pool = pool_of(eight_gpus, environ=above.environment, store=store)
        assert pool.devices == ()
        assert pool.ancestors == (above.id,)
        assert pool.limited_by == "the lease that this program runs under"


def test_what_the_lease_above_claims_and_does_not_hold_is_not_parted(eight_gpus, store):
    with jupyter_gpu.acquire(2) as above:
        above.claim.keep_only(above.record.uuids[:1])
        assert indices(pool_of(eight_gpus, environ=above.environment, store=store)) == [0]


@pytest.mark.parametrize("limits", [(), (Limit("0,1", "the environment"), Limit("", "a spec"))])
def test_limits_can_be_written_down_and_read(limits):
    assert read_limits(written_limits(limits)) == limits


@pytest.mark.parametrize("text", ["", "{", "3", "null", "[1]", '["ab", "abc"]', "[" * 5000])
def test_limits_that_cannot_be_read_allow_nothing(eight_gpus, text):
    (limit,) = read_limits(text)
    assert find_pool(eight_gpus, (limit,), {}, None).devices == ()
