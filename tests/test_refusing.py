"""What becomes of a request that is not met: never possible, not now, or no locks at all."""

import os

import pytest

import jupyter_gpu
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.processes import user_name
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.candidates import Surroundings
from jupyter_gpu.core.errors import ImpossibleRequest
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.topology import Topology
from jupyter_gpu.pool import Limit, Pool, find_pool
from jupyter_gpu.refusing import require_allowed, without_locks
from jupyter_gpu.site import Site

ME = user_name(os.getuid())
H200 = {"name": "NVIDIA H200", "memory_total_bytes": 150_754_820_096}
PART = {"profile": "1g.18gb", "memory_total_bytes": 18 * 2**30}
MIXED = {"gpus": [{**H200, "mig": [PART, PART]}, H200]}


@pytest.fixture
def allowed(lease_directory, tmp_path):
    """A function that returns the pool that a request may have under these rules."""
    place = Place(lease_directory, "given")

    def ask(inventory, gpus=1, rules="", pool=None, **options):
        path = tmp_path / "rules.toml"
        path.write_text(rules)
        site = Site(place, {"JUPYTER_GPU_CONFIG": str(path)})
        with LeaseStore(place, write=True) as store:
            around = Surroundings(store, site, True, Topology)
            request = Request.parse({"gpus": gpus, **options})
            found = require_allowed(request, inventory, pool or Pool(inventory.devices), around)
        return [device.uuid for device in found.devices]

    return ask


def impossible(allowed, *given, **options):
    with pytest.raises(ImpossibleRequest) as caught:
        allowed(*given, **options)
    return str(caught.value)


def test_without_rules_the_pool_stays(allowed, eight_gpus):
    assert allowed(eight_gpus, 8) == [device.uuid for device in eight_gpus.devices]
    assert "this machine has 8 GPUs" in impossible(allowed, eight_gpus, 9)


def test_reserved_devices_leave_the_pool(allowed, eight_gpus):
    rules = '[[reserved]]\ndevices = [0, 1, 2]\nusers = ["carol"]\n'
    assert len(allowed(eight_gpus, 5, rules)) == 5
    assert len(allowed(eight_gpus, "all", rules)) == 5
    said = impossible(allowed, eight_gpus, 6, rules)
    assert said.startswith(f"6 GPUs: too few are open to {ME}: physical 0, 1")
    assert "reserved for carol (/" in said
    everything = rules.replace("[0, 1, 2]", "[0, 1, 2, 3, 4, 5, 6, 7]")
    assert "too few are open" in impossible(allowed, eight_gpus, "all", everything)


def test_a_limit_below_what_is_asked_for_is_never_met(allowed, eight_gpus):
    rules = "max_devices_per_user = '5/2'\n"
    assert allowed(eight_gpus, 2, rules)
    assert allowed(eight_gpus, "1/2", rules)
    for gpus in (3, "all"):
        assert "the limit is 2½" in impossible(allowed, eight_gpus, gpus, rules)


def test_no_more_than_a_share_can_be_had_below_it(allowed, eight_gpus):
    below = Pool(eight_gpus.devices[:1], ("a" * 15,), "a share", capacity=DEVICE_UNITS // 2)
    assert allowed(eight_gpus, "1/2", pool=below)
    for gpus in (1, "3/4", "all"):
        said = impossible(allowed, eight_gpus, gpus, pool=below)
        assert "has only a share of physical 0." in said


def test_mig_devices_are_no_part_of_the_pool_for_who_wants_more_than_one(allowed, simulate):
    machine = simulate(MIXED)
    whole, *parts, other = machine.devices
    names = [part.uuid for part in parts]
    assert allowed(machine, 1, devices=names) == [device.uuid for device in machine.devices]
    assert allowed(machine, "mig:1g.18gb")
    said = impossible(allowed, machine, 2, devices=names)
    assert "a kernel gets 1 MIG device at most" in said
    assert "a kernel gets 1 MIG device at most" in impossible(
        allowed, machine, "all", devices=names
    )
    assert allowed(machine, 2, "mig_devices_per_kernel = 2\n", devices=names)
    assert "asked for" in impossible(allowed, machine, 3, "mig_devices_per_kernel = 2\n")
    assert allowed(machine, "all") == [whole.uuid, other.uuid]
    mixed = [names[0], other.uuid]
    assert "at most" in impossible(allowed, machine, 2, devices=mixed)


@pytest.fixture
def chosen(eight_gpus):
    """What is chosen where nothing can be locked."""

    def choose(gpus=1, limits=(), **options):
        request = Request.parse({"gpus": gpus, **options})
        pool = find_pool(eight_gpus, tuple(Limit(one, "a test") for one in limits), {}, None)
        return without_locks(request, eight_gpus, pool, os.environ, None)

    return choose


def test_without_locks_a_choice_is_made_and_the_person_is_told(chosen):
    lease = chosen(2)
    assert [device.index for device in lease.devices] == [0, 1]
    assert lease.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert (lease.exclusive, lease.id) == (False, None)
    assert "not exclusive here" in lease.caution
    share = chosen("1/4")
    assert share.environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.25"


def test_without_locks_what_cannot_be_had_is_no_refusal(chosen):
    for gpus, limits in ((9, ()), (1, ("",)), ("mig:1g.18gb", ())):
        lease = chosen(gpus, limits)
        assert (lease.devices, lease.environment) == ((), {})
        assert lease.caution.startswith("No GPU was chosen. ")
        assert "Nothing is exclusive here" in lease.caution


def test_a_refusal_of_a_share_tells_the_reason_beside_the_leases(simulate, program):
    stranger = program("print(1); input()")
    stranger.read()
    simulate({"gpus": [H200]})
    sharer = program("import jupyter_gpu; kept = jupyter_gpu.acquire('1/4'); print(1); input()")
    sharer.read()
    simulate({"gpus": [{**H200, "processes": [{"pid": stranger.pid}]}]})
    with pytest.raises(jupyter_gpu.NoDeviceAvailable) as caught:
        jupyter_gpu.acquire("1/4")
    told = " ".join(str(caught.value).split())
    assert "¼ GPU since" in told
    assert f"0 used without a lease by {ME}: {stranger.pid}" in told
