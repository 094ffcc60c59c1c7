"""What is said under a cell that changed the variable: all that is too late, and nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_cli import device, inventory, kernel, lease, overview, uuid

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.history import Change, Frozen, History, Imported
from jupyter_gpu.core.kernel_process import InForce
from jupyter_gpu.core.late import change_view, export_view, is_late, map_words, stale_words
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.overview import Leasing
from jupyter_gpu.core.render_text import as_text

MINE = lease("a", (3, 1), "me", Owner("kernel", notebook="/home/me/train.ipynb"))
TORCH = (Imported("torch", "torch", "2.13.0", 1),)


def flat(view):
    return None if view is None else " ".join(as_text(view).split())


def frozen_with(*values, cell=2, **changes):
    return History(frozen=Frozen(cell, values=values), **changes)


def late(now, in_force, *values, launched="0,1", machine=None):
    process = kernel(
        launched=launched, now=now, state="frozen", in_force=in_force, history=frozen_with(*values)
    )
    return is_late(overview(machine, value=now, process=process), process)


@pytest.mark.parametrize(
    ("launched", "now", "in_force", "too_late"),
    [
        ("0,1", "0,1", (0, 1), False),
        ("0,1", "1", (0, 1), True),
        ("0,1", "1,0", (0, 1), True),
        ("0,1", "", (0, 1), True),
        ("0,1", "-1", (0, 1), True),
        ("0,1", None, (0, 1), True),
        ("0,1", "0,1,9", (0, 1), False),
        ("0,1", "0,0", (0, 1), True),
        ("0,1", f"{uuid(0)},{uuid(1)}", (0, 1), False),
        ("0,1", "GPU-00000000,GPU-00000001", (0, 1), False),
        ("0,1", " +0, 1", (0, 1), False),
        ("0,1", uuid(1), (0, 1), True),
        ("0,1", "7", (0, 1), True),
        ("", "0", (), True),
        ("-1", "", (), False),
        (None, None, (0, 1, 2, 3), False),
        (None, "0,1,2,3", (0, 1, 2, 3), False),
        (None, "1", (0, 1, 2, 3), True),
        (None, "", (0, 1, 2, 3), True),
        (uuid(2), "2", (2,), False),
        (uuid(2), "3", (2,), True),
        # Set in time, before what is in force was read.
        ("0,1", "1", (1,), False),
        (None, "1", (1,), False),
        ("0,1", None, (0, 1, 2, 3), False),
    ],
)
def test_the_variable_is_late_where_it_means_other_devices_than_those_in_force(
    launched, now, in_force, too_late
):
    assert late(now, in_force, launched=launched) is too_late
    assert late(now, in_force, *((launched,) if too_late else ()), launched=launched) is too_late


def test_a_change_back_after_a_change_in_time_is_late_too():
    assert late("0,1", (1,), "1", launched="0,1")
    assert late(None, (1,), "1", launched=None)
    assert not late("1", (1,), "1", launched="0,1")


@pytest.mark.parametrize(
    ("values", "now", "in_force", "too_late"),
    [
        # In the cell in which CUDA was initialised the variable went from the first to the second.
        (("0", "1"), "1", (1,), False),
        (("0", "1"), "1", (0,), True),
        (("0", "1"), "0", (1,), True),
        (("0", "1"), "0", (0,), False),
        (("0", "1"), "2", (0,), True),
        (("0", "1"), "2", (1,), True),
        # It was something else for a moment, when the driver read it.
        (("0",), "0", (3,), True),
        (("0", "2"), "2", (1,), True),
        (("0",), uuid(0), (3,), True),
    ],
)
def test_what_the_driver_has_given_decides_on_a_machine_of_equal_gpus(
    values, now, in_force, too_late
):
    assert late(now, in_force, *values, launched="0") is too_late


MIXED = inventory(device(0), *(device(n, name="NVIDIA L4") for n in range(1, 4)))


@pytest.mark.parametrize(
    ("values", "now", "in_force", "too_late"),
    [
        # CUDA numbers this machine in another order than we do: nobody can tell.
        (("0,1", "0"), "0", (3,), False),
        (("0",), "0", (3,), False),
        (("0",), "1", (3,), True),
        (("0",), uuid(0), (3,), False),
    ],
)
def test_what_the_driver_may_have_read_decides_where_our_reading_differs(
    values, now, in_force, too_late
):
    assert late(now, in_force, *values, launched="0", machine=MIXED) is too_late


def test_without_nvml_the_text_alone_decides():
    gone = Inventory("none", problem="the driver was updated")
    assert late("1", (0,), "0", launched="0", machine=gone)
    assert not late("0", (0,), "0", launched="0", machine=gone)


PARTS = inventory(
    device(0, mig_mode=True),
    Device(0, "MIG-11111111-0000-0000-0000-000000000000", "1g", kind="mig"),
    Device(0, "MIG-22222222-0000-0000-0000-000000000000", "1g", kind="mig"),
    device(1),
)
FIRST, SECOND = (one.uuid for one in PARTS.devices[1:3])


def with_parts(now, in_force, *values, launched):
    rows = tuple(InForce(n, 0, one) for n, one in enumerate(in_force))
    process = kernel(launched=launched, now=now, state="frozen", history=frozen_with(*values))
    process = type(process)(1, launched, now, "frozen", rows, history=process.history)
    return is_late(overview(PARTS, value=now, process=process), process)


def test_of_several_mig_devices_that_a_driver_gives_nothing_is_said():
    both = f"{FIRST},{SECOND}"
    for given_devices in ((FIRST,), (FIRST, SECOND)):
        assert not with_parts(both, given_devices, both, launched=both)
        assert not with_parts(both, given_devices, both, launched="0")
        assert with_parts(SECOND, given_devices, both, launched=both)
    assert with_parts("0", (FIRST,), FIRST, launched=FIRST)


def test_a_device_that_the_inventory_lacks_is_compared_by_number():
    def unknown(now, *values):
        process = kernel(launched="0", now=now)
        rows = (InForce(0, None, None),)
        process = type(process)(1, "0", now, "frozen", rows, history=frozen_with(*values))
        return is_late(overview(value=now, process=process), process)

    assert not unknown("1")
    assert unknown("0,1")
    assert unknown("0,1", "0")
    assert not unknown("0,1", "0,1")


VALUES = (None, "", "-1", "0", "1", "1,0", "0,1", uuid(1), "0,0", "9", "0-1", "all")


@settings(deadline=None)
@given(*(st.sampled_from(VALUES) for _ in range(3)), st.lists(st.integers(0, 3), unique=True))
def test_the_value_that_the_driver_read_is_never_called_late(launched, value, now, in_force):
    process = kernel(
        launched=launched, now=now, state="frozen", in_force=in_force, history=frozen_with(value)
    )
    seen = overview(MIXED, value=now, process=process)
    said = change_view(seen, Change(3, value, now, "%env"))
    if now == value:
        assert said is None
    elif [one.uuid for one in seen.visible.devices] == [uuid(n) for n in in_force]:
        assert said is None


@pytest.mark.parametrize("state", ["open", "absent"])
@pytest.mark.parametrize("value", [None, "0", "1,0", uuid(1), "", "-1"])
def test_a_value_that_says_what_it_means_and_counts_gets_no_word(state, value):
    process = kernel(launched="0,1", now=value, state=state)
    change = Change(2, "0,1", value, "%env")
    assert change_view(overview(value=value, process=process), change) is None


def test_without_a_kernel_or_in_a_forked_one_nothing_is_said():
    change = Change(2, "0", "0-1", "%env")
    assert change_view(overview(value="0-1"), change) is None
    forked = kernel(launched="0", now="0-1", state="forked")
    assert change_view(overview(value="0-1", process=forked), change) is None


def test_a_value_that_counts_and_is_meant_otherwise_gets_its_note():
    process = kernel(launched=None, now="0-1")
    said = flat(change_view(overview(value="0-1", process=process), Change(2, None, "0-1", "%env")))
    assert said.startswith('CUDA_VISIBLE_DEVICES is now "0-1": CUDA will show physical 0.')
    assert "Ranges are not read by CUDA" in said
    process = kernel(launched=None, now="9")
    said = flat(change_view(overview(value="9", process=process), Change(2, None, "9", "%env")))
    assert "CUDA will show no GPU" in said


def test_a_value_outside_the_lease_is_said_while_it_counts_and_how_to_go_back():
    process = kernel(launched="3,1", now="0", lease_id="a" * 15)
    others = (MINE, lease("b", (0,), "bob"))
    seen = overview(leases=others, value="0", process=process)
    said = flat(change_view(seen, Change(2, "3,1", "0", "%env")))
    assert "Physical 0 is outside this kernel's lease: held by bob (expb.ipynb)." in said
    assert 'To go back, set CUDA_VISIBLE_DEVICES to "3,1".' in said
    process = kernel(launched="3,1", now="3", lease_id="a" * 15)
    seen = overview(leases=others, value="3", process=process)
    assert change_view(seen, Change(2, "3,1", "3", "%env")) is None


def test_a_change_that_came_too_late_says_what_is_in_force_since_when_and_what_to_do():
    history = History(TORCH, Frozen(2, call="torch.cuda.is_available", values=("3,1",)))
    process = kernel(
        renewable=True,
        launched="3,1",
        now="0",
        state="frozen",
        in_force=(3, 1),
        lease_id="a" * 15,
        history=history,
    )
    seen = overview(leases=(MINE,), value="0", process=process)
    view = change_view(seen, Change(3, "3,1", "0", "%env"))
    said = flat(view)
    assert said.startswith(
        'CUDA_VISIBLE_DEVICES is now "0", but that changes nothing in this kernel:'
    )
    assert "cell [2] (torch.cuda.is_available) initialised CUDA" in said
    assert "since then cuda:0 = physical 3, cuda:1 = physical 1." in said
    assert "torch.cuda.device_count() says 1, which is stale; it is 2." in said
    assert "restart the kernel (the lease stays) and set it first" in said
    assert all(len(line) <= 80 for line in as_text(view).split("\n"))
    gone = kernel(launched="3,1", now=None, state="frozen", in_force=(3, 1), history=history)
    said = flat(change_view(overview(value=None, process=gone), Change(3, "3,1", None, "%env")))
    assert said.startswith("CUDA_VISIBLE_DEVICES is no longer set, but that changes nothing")
    assert "(the lease stays)" not in said


@pytest.mark.parametrize(("value", "words"), [(None, "not set"), ("3,1", '"3,1"'), ("", '""')])
def test_an_export_is_told_to_have_changed_nothing(value, words):
    said = flat(export_view(overview(value=value, process=kernel(now=value))))
    assert said.startswith(
        f"The ! line changed nothing here: CUDA_VISIBLE_DEVICES is still {words}."
    )
    assert "%env CUDA_VISIBLE_DEVICES=" in said
    assert export_view(overview()).title


def test_the_map_is_told_in_words():
    assert map_words(()) == "it has no device"
    rows = (InForce(0, 3, uuid(3)), InForce(1, None, None))
    assert map_words(rows) == "cuda:0 = physical 3, cuda:1 = physical unknown"


@pytest.mark.parametrize(
    ("state", "now", "in_force", "remembered", "stale"),
    [
        # Open: a count that torch before 2.3 has taken and keeps.
        ("open", "0,1", None, None, None),
        ("open", "0,1", None, 2, None),
        ("open", "1", None, 2, "says 2, which it remembers: stale. CUDA will show 1."),
        ("open", "1", None, 0, None),
        ("absent", "1", None, 2, None),
        # Frozen: torch since 2.3 counts by the variable, unless it has initialised CUDA itself.
        ("frozen", "0,1", (0, 1), None, None),
        ("frozen", "1", (0, 1), None, "says 1, which is stale; it is 2."),
        ("frozen", "1", (0, 1), 2, None),
        ("frozen", "", (0, 1), None, "says 0, which is stale; it is 2."),
        ("frozen", "0,1", (0,), 2, "says 2, which is stale; it is 1."),
        ("frozen", "1", (0, 1), 0, None),
    ],
)
def test_torchs_own_count_is_called_stale_where_it_is(state, now, in_force, remembered, stale):
    changes = {"state": state, "in_force": in_force, "torch_count": remembered}
    process = kernel(launched="0,1", now=now, history=History(TORCH), **changes)
    said = stale_words(overview(value=now, process=process), process)
    assert said == (None if stale is None else f"torch.cuda.device_count() {stale}")
    without = kernel(launched="0,1", now=now, **changes)
    assert stale_words(overview(value=now, process=without), without) is None


def test_of_mig_devices_torch_asks_the_driver_so_its_count_is_right():
    process = kernel(launched=None, now=FIRST, history=History(TORCH))
    rows = (InForce(0, 0, FIRST), InForce(1, 0, SECOND))
    process = type(process)(1, None, FIRST, "frozen", rows, history=process.history)
    assert stale_words(overview(PARTS, value=FIRST, process=process), process) is None


def test_nothing_is_said_to_be_leased_where_nothing_can_be():
    leasing = Leasing(exclusive=False, problem="Not exclusive here.")
    process = kernel(launched="0", now="1")
    seen = overview(value="1", process=process, leasing=leasing)
    assert change_view(seen, Change(2, "0", "1", "%env")) is None
