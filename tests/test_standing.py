import pytest
from support_cli import GIB, NOW, device, inventory, kernel, lease, overview, using, uuid

from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.overview import Leasing
from jupyter_gpu.core.standing import (
    FREE,
    holder_words,
    innermost,
    owner_name,
    standing,
    standing_words,
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, FREE),
        ({"problem": "GPU 0 is lost"}, "out of use"),
        ({"problem": "in MIG mode", "mig_mode": True}, "in MIG mode"),
        ({"exclusive": True}, "in exclusive-process mode, or closed to compute"),
        ({"processes": using(9)}, "used without a lease by bob: 9 python x.py"),
        ({"memory_used_bytes": 3 * GIB}, "3.0 GiB in use by no process that can be seen"),
        ({"kind": "mig"}, "free"),
    ],
)
def test_a_device_without_a_lease_is_described(changes, words):
    machine = inventory(device(0, **changes))
    seen = overview(machine, seen=[(9, "bob", "python x.py")])
    assert standing(machine.devices[0], seen).words == words


def test_a_lock_without_a_record_and_a_store_that_cannot_be_read_are_not_free():
    gpu = inventory().devices[0]
    assert "no record" in standing(gpu, overview(unclaimed=(uuid(0),))).words
    assert standing(gpu, overview(leasing=Leasing(exclusive=False))).words != FREE


def test_the_asking_kernels_own_processes_do_not_count():
    machine = inventory(device(0, processes=using(4711)))
    known = [(4711, "me", "python")]
    assert standing(machine.devices[0], overview(machine, seen=known)).words != FREE
    asked = overview(machine, seen=known, process=kernel(4711))
    assert standing(machine.devices[0], asked).words == FREE


def test_of_nested_leases_the_innermost_counts():
    outer = lease("a", (0, 1))
    inner = lease("b", (0,), ancestors=("a" * 15,))
    seen = overview(leases=[outer, inner])
    assert innermost((outer, inner)) == (inner,)
    assert standing(seen.inventory.devices[0], seen).leases == (inner,)
    assert standing(seen.inventory.devices[1], seen).leases == (outer,)


def test_nothing_is_free_below_a_lease_that_has_ended():
    inner = lease("b", (0,), "bob", ancestors=("a" * 15,))
    seen = overview(leases=[inner])
    gpu = seen.inventory.devices[0]
    found = standing(gpu, seen)
    assert (found.leases, found.free_units) == ((inner,), 0)
    assert standing_words(gpu, seen) == "bob (expb.ipynb), in use below a lease that has ended"
    # An outer lease that lives on other devices only is none on this one.
    outer = lease("a", (1,))
    assert standing(gpu, overview(leases=[outer, inner])).free_units == 0
    whole = overview(leases=[lease("a", (0, 1)), inner])
    assert standing(gpu, whole).words == ""


def test_the_middle_of_three_may_end_without_a_word():
    inner = lease("c", (0,), ancestors=("a" * 15, "b" * 15))
    seen = overview(leases=[lease("a", (0,)), inner])
    assert standing(seen.inventory.devices[0], seen).words == ""


def test_a_holder_is_named_shortly():
    assert holder_words(lease("a", (0,), "alice")) == "alice (expa.ipynb)"
    assert holder_words(lease("a", (0,), None, state="draining")) == (
        "unknown user (expa.ipynb, draining)"
    )
    long = lease("a", (0,), owner=Owner("command", command="python " + "x" * 500))
    assert len(holder_words(long)) < 60


def test_for_how_long_a_holder_is_idle_is_told_where_the_present_is_known():
    owner = Owner("kernel", notebook="/a/exp7.ipynb", idle_since="2026-12-01T09:00:00+00:00")
    idle = lease("a", (0,), "alice", owner)
    assert holder_words(idle, NOW) == "alice (exp7.ipynb, idle 3 h)"
    assert holder_words(idle) == "alice (exp7.ipynb)"
    seen = overview(leases=[idle])
    assert standing_words(seen.inventory.devices[0], seen, NOW) == "alice (exp7.ipynb, idle 3 h)"
    draining = lease("a", (0,), "alice", owner, state="draining")
    assert holder_words(draining, NOW) == "alice (exp7.ipynb, draining)"


def test_whoever_waits_is_named_like_a_holder():
    assert owner_name(Owner("kernel", notebook="/home/a/fit.ipynb")) == "fit.ipynb"
    assert owner_name(Owner("command", command="python train.py")) == "python train.py"


def test_a_device_is_described_by_its_holders_or_by_how_it_stands():
    seen = overview(leases=[lease("a", (0,), "alice"), lease("b", (0,), "bob")])
    both = "alice (expa.ipynb) and bob (expb.ipynb)"
    assert standing_words(seen.inventory.devices[0], seen) == both
    assert standing_words(seen.inventory.devices[1], seen) == FREE
