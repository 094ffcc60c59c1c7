import dataclasses

import pytest
from support_cli import GIB, NOW, device, inventory, kernel, lease, overview, using, uuid

from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.kernel_process import InForce
from jupyter_gpu.core.kernel_view import kernel_view, others_words
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.overview import Leasing
from jupyter_gpu.core.render_text import as_text

MINE = lease("a", (3, 1), "me", Owner("kernel", notebook="/home/me/train.ipynb"))


def shown(process, machine=None, leases=(MINE,), **changes):
    value = changes.pop("value", process.set_now)
    seen = overview(machine, leases, value=value, process=process, **changes)
    return as_text(kernel_view(seen, process, NOW))


def flat(text):
    return " ".join(text.split())


def own(**changes):
    return kernel(launched="3,1", lease_id="a" * 15, **{"now": "3,1", **changes})


def test_the_answer_is_how_many_are_yours_and_which():
    text = shown(own())
    assert text.startswith("2 of 4 GPUs are yours")
    assert "cuda:0 = physical 3" in text
    assert "cuda:1 = physical 1" in text
    assert "Leased since 10:42 for train.ipynb; ends with this kernel." in flat(text)
    assert "Why these: free at that moment, lowest physical index first." in flat(text)


def test_memory_says_how_much_of_it_is_this_kernels():
    busy = inventory(
        device(0),
        device(1),
        device(2),
        device(
            3, memory_used_bytes=13 * GIB, processes=using(4711, 12 * GIB), utilization_percent=43
        ),
    )
    line = shown(own(), busy, seen=[(4711, "me", "python")]).split("\n")[1]
    assert line.split("  ")[1:] == [
        "cuda:0 = physical 3",
        "H200",
        "13.0 of 140.4 GiB",
        "12.0 GiB here",
        "43 %",
    ]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("open", "CUDA is open"),
        ("absent", "no working driver"),
        ("forked", "forked"),
        ("simulated", "in force –, simulated"),
    ],
)
def test_the_state_is_said_in_words(state, words):
    assert words in flat(shown(own(state=state)))


def test_three_values_are_shown_and_when_frozen_the_driver_is_believed():
    text = flat(shown(own(state="frozen", in_force=(3, 1))))
    assert "frozen" in text
    assert 'launched with "3,1"; set now "3,1"; in force physical 3, 1' in text
    assert "changes nothing" not in text


def test_a_change_that_came_too_late_is_explained():
    text = flat(shown(own(now="1", state="frozen", in_force=(3, 1), renewable=True)))
    assert 'CUDA_VISIBLE_DEVICES is now "1", but that changes nothing' in text
    assert "in force physical 3, 1" in text
    assert "restart the kernel (the lease stays) and set it first" in text


def test_a_device_that_the_machine_does_not_know_is_unknown_and_not_a_crash():
    process = kernel(state="frozen", in_force=())
    process = type(process)(1, None, None, "frozen", (InForce(0, None, None),))
    assert "cuda:0 = physical unknown" in shown(process, leases=())


def test_visible_devices_outside_the_lease_are_not_called_yours():
    text = shown(own(now="0,3"))
    assert text.startswith("Physical 0 is visible and not yours; yours: physical 3, 1\n")
    assert "Physical 0 is outside this kernel's lease: free, and may go to another kernel." in flat(text)
    assert 'To go back, set CUDA_VISIBLE_DEVICES to "3,1".' in flat(text)
    assert "of 4 GPUs" not in text
    assert [line.split("  ")[1] for line in text.split("\n")[2:5]] == [
        "cuda:0 = physical 0",
        "cuda:1 = physical 3",
        "not visible: physical 1",
    ]


def test_whoever_has_what_is_visible_here_is_named():
    others = (MINE, lease("b", (0,), "bob"))
    text = flat(shown(own(now="0,2"), leases=others))
    assert text.startswith("Physical 0, 2 are visible and not yours; yours: physical 3, 1 ")
    assert "Physical 0 is outside this kernel's lease: held by bob (expb.ipynb). Physical 2 is" in text
    frozen = kernel(launched="0", now="0", state="frozen", in_force=(0,), lease_id="a" * 15)
    assert "held by bob (expb.ipynb). Restart the kernel" in flat(shown(frozen, leases=others))


@pytest.mark.parametrize(
    ("now", "title"),
    [
        ("3,1", "2 of 4 GPUs are yours "),
        ("3", "2 of 4 GPUs are yours, but only 1 of them is visible here\n"),
        ("-1", "2 of 4 GPUs are yours, but none of them is visible here\n"),
    ],
)
def test_the_answer_says_how_many_of_yours_are_visible(now, title):
    text = shown(own(now=now))
    assert text.startswith(title)
    hidden = [n for n in (3, 1) if f"not visible: physical {n}" in text]
    assert hidden == [n for n in (3, 1) if str(n) not in now or now == "-1"]
    one = lease("a", (3,), "me")
    assert shown(own(now="-1"), leases=(one,)).startswith(
        "1 of 4 GPUs is yours, but it is not visible here"
    )


def test_a_kernel_without_a_lease_is_told_how_to_have_one_and_who_has_what():
    text = shown(kernel(launched=None, now=None), leases=(lease("b", (0, 2), "bob"),))
    assert text.startswith("4 GPUs are visible here, none leased to this kernel")
    lines = text.split("\n")
    at = lines.index("Pick a PyTorch (n GPUs) kernel to have some to yourself.")
    assert lines[at + 1] == "Devices: 0, 2 bob (expb.ipynb) · 1, 3 free."
    assert "Pick a" not in shown(own())
    assert "Pick a" not in shown(own(), leases=())


def test_a_refused_kernel_is_not_said_to_have_no_gpu_on_purpose():
    said = ("This kernel has no GPU.", "No GPU is free.")
    refused = kernel(launched="-1", now="-1", notices=said)
    assert "on purpose" not in shown(refused, leases=())
    assert "on purpose" in shown(kernel(launched="-1", now="-1"), leases=())
    assert "Ranges" in shown(kernel(launched="-1", now="0-1", notices=said), leases=())


def test_a_framework_that_is_missing_is_the_last_line():
    missing = "PyTorch is not installed in this kernel's Python:  %pip install torch"
    leasing = Leasing("/leases", warning="Leases are not safe here.")
    text = shown(own(missing=(missing,)), leasing=leasing)
    assert text.split("\n")[-1] == f"Note: {missing}"


def test_a_lease_that_is_gone_is_warned_about():
    text = flat(shown(own(), leases=()))
    assert "cannot be found" in text
    assert "2 of 4 GPUs are visible here, none leased to this kernel" in text


def test_without_a_gpu_the_reason_is_there():
    assert "No GPU is visible in this kernel (4 GPUs on this machine)" in shown(
        kernel(launched="-1", now="-1"), leases=()
    )
    text = shown(kernel(state="absent"), Inventory("none", problem="There is no driver."), ())
    assert text.startswith("No GPU can be seen here")
    assert "There is no driver." in text


def test_notices_of_the_start_come_first():
    text = shown(own(notices=("This kernel has no GPU.",)))
    assert text.startswith("This kernel has no GPU.\n")


def test_a_lease_of_the_command_above_is_not_said_to_end_with_this_kernel():
    above = lease("a", (3, 1), "me", Owner("command", command="jupyter lab"), pids=(1,))
    text = flat(shown(own(), leases=(above,)))
    assert "by jupyter lab, which this program runs under" in text
    assert "ends with" not in text


def test_others_are_named_with_what_they_hold():
    machine = inventory(*(device(n) for n in range(3)), device(3), device(4, problem="lost"))
    seen = overview(
        machine,
        [MINE, lease("b", (0,), "bob", state="draining"), lease("c", (2,), "eve")],
        process=own(),
    )
    assert others_words(seen) == (
        "Others: 0 bob (expb.ipynb, draining) · 2 eve (expc.ipynb) · 4 out of use."
    )
    idle = Owner("kernel", notebook="/a/exp7.ipynb", idle_since="2026-12-01T09:00:00+00:00")
    seen = overview(leases=[lease("b", (0,), "alice", idle)], process=kernel())
    assert others_words(seen, NOW).startswith("Devices: 0 alice (exp7.ipynb, idle 3 h) · 1, 2")
    assert others_words(overview(process=kernel())) == "Devices: 0, 1, 2, 3 free."


def test_what_is_wrong_with_leasing_is_said():
    text = flat(shown(own(), leasing=Leasing(exclusive=False, problem="Not exclusive here: no.")))
    assert "Not exclusive here: no." in text
    assert "cannot be found" not in text


def test_hostile_names_stay_on_their_line():
    evil = lease("b", (0,), "bob", Owner("kernel", notebook="/x/" + "a\u202e" * 400))
    text = shown(own(), leases=(MINE, evil))
    assert all(len(line) <= 80 for line in text.split("\n"))


def test_a_value_with_a_slip_is_noted_while_it_still_counts():
    assert "Ranges are not read by CUDA" in flat(shown(kernel(now="0-1"), leases=()))
    assert uuid(0) not in shown(own())


def test_a_variable_that_is_not_set_is_said_in_words():
    text = flat(shown(kernel(launched=None, now=None), leases=()))
    assert "launched without it; not set now; in force – (open)" in text


def test_a_share_is_said_to_be_a_part_of_its_gpu():
    whole = lease("a", (0,), "me")
    quarter = dataclasses.replace(
        whole, record=dataclasses.replace(whole.record, units=DEVICE_UNITS // 4)
    )
    process = kernel(launched="0", now="0", lease_id="a" * 15)
    text = flat(shown(process, leases=(quarter,)))
    assert text.startswith("¼ of physical 0 is yours (4 GPUs on this machine)")
    assert "The rest of 0: 3/4 GPU free." in text.replace("¾", "3/4")
    hidden = shown(kernel(launched="0", now="-1", lease_id="a" * 15), leases=(quarter,))
    assert flat(hidden).startswith(
        "¼ of physical 0 is yours, but it is not visible here (4 GPUs on this machine)"
    )
    elsewhere = kernel(launched="0", now="2", lease_id="a" * 15)
    assert "yours: ¼ of physical 0" in flat(shown(elsewhere, leases=(quarter,)))


def test_a_mig_device_of_yours_is_named_with_its_gpu():
    part = dataclasses.replace(device(1, kind="mig", profile="1g.18gb"), uuid="MIG-1f2e3d4c-1")
    machine = inventory(device(0), device(1, mig_mode=True, problem="in MIG mode"), part)
    mine = lease("a", (1,), "me")
    mine = dataclasses.replace(mine, record=dataclasses.replace(mine.record, uuids=(part.uuid,)))
    process = kernel(launched=part.uuid, now=part.uuid, lease_id="a" * 15)
    text = flat(shown(process, machine, (mine,)))
    assert text.startswith("1 MIG device is yours: 1g.18gb of physical 1 ")
