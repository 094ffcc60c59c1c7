import dataclasses

import pytest
from support_cli import GIB, NOW, device, inventory, lease, overview, using, uuid, waiter

from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.machine_view import device_words, map_view, status_view, who_view
from jupyter_gpu.core.overview import Leasing, RulesShown
from jupyter_gpu.core.policy import HAD_LAST_TIME, HELD_ALREADY, SHARED_ALREADY, USUAL_REASON
from jupyter_gpu.core.render_text import as_text
from jupyter_gpu.core.visibility import visible


def status(*arguments, **changes):
    return as_text(status_view(overview(*arguments, **changes), NOW))


def who(*arguments, **changes):
    return as_text(who_view(overview(*arguments, **changes), NOW))


def map_text(value, machine=None):
    machine = machine or inventory()
    return as_text(map_view(visible(value, machine), machine))


def test_status_counts_what_is_free_and_names_holders():
    text = status(leases=[lease("a", (1,), "alice")])
    assert text.startswith("4 GPUs, 3 free")
    assert "alice (expa.ipynb) since 10:42" in text
    assert "every GPU is visible" in text
    assert status(leases=[lease("a", range(4))]).startswith("4 GPUs, none free")


def test_status_says_what_is_visible_in_its_environment():
    assert 'is "2,0" here: cuda:0 = physical 2, cuda:1 = physical 0.' in status(value="2,0")
    assert "no GPU is visible" in status(value="-1")


def test_status_lists_parts_and_problems():
    whole = device(0, mig_mode=True, problem="in MIG mode")
    part = mig("MIG-1f2e3d4c-5d9e")
    text = status(inventory(whole, part, device(1, problem="GPU 1 is lost; reboot.")))
    assert "0 (MIG-1f2e3d4c 1g.18gb)" in text
    assert "Note: GPU 1 is lost; reboot." in text
    assert "Note: GPU 0" not in text


def test_status_without_a_machine_says_why():
    text = status(Inventory("none", problem="There is no driver."))
    assert text == "No GPU can be seen here\nNote: There is no driver."


def test_nothing_is_called_free_where_leases_cannot_be_read():
    leasing = Leasing(exclusive=False, problem="GPUs cannot be leased: full.")
    assert "free" not in status(leasing=leasing)
    text = who(leasing=leasing)
    assert text.startswith("No lease can be seen here")
    assert "GPUs cannot be leased: full." in text


def test_who_tells_each_lease_and_why_those_devices():
    command = Owner("command", command="python train.py")
    text = who(
        leases=[
            lease("a", (0, 1), "bob", command, because=("asked for by name",)),
            lease("b", (2,), "eve", state="draining", note="kept by process 12 (python)"),
        ]
    )
    assert text.startswith("2 leases on this machine")
    for words in (
        "python train.py",
        "10:42",
        "pid 4711",
        "chosen: asked for by name",
        "draining; kept by process 12 (python)",
        "Not leased: 3 free.",
    ):
        assert words in " ".join(text.split())
    assert "lowest physical index" not in text


def test_who_tells_who_waits_in_their_order():
    notebook = Owner("kernel", notebook="/home/carol/fit.ipynb")
    command = Owner("command", command="python train.py")
    text = who(
        waiters=(
            waiter("b", owner=notebook, gpus=2, model="H200"),
            waiter("c", owner=command, stalled=True),
        )
    )
    assert text.startswith("No GPU is leased")
    assert "1  carol  fit.ipynb        yesterday 18:40  2 GPUs of model H200" in text
    assert "2  carol  python train.py  yesterday 18:40" in text
    assert "has stopped looking" in text


def test_who_and_status_tell_how_long_a_holder_is_idle_and_the_memory_on_its_devices():
    idle = Owner("kernel", notebook="/a/exp7.ipynb", idle_since="2026-12-01T09:00:00+00:00")
    machine = inventory(
        device(0, memory_used_bytes=60 * GIB),
        device(1, memory_used_bytes=2 * GIB),
        device(2, memory_used_bytes=None),
        device(3, processes=using(99), memory_used_bytes=GIB),
    )
    leases = [lease("a", (0, 1), "alice", idle), lease("b", (2,), "bob")]
    text = who(machine, leases, seen=[(99, "carol", "python x.py")])
    assert "  0, 1  alice  exp7.ipynb  10:42  62.0 GiB  idle 3 h; pid 4711" in text
    assert "  2     bob    expb.ipynb  10:42            pid 4711" in text
    assert "Not leased: 3 used without a lease by carol: 99 python x.py" in text
    assert "alice (exp7.ipynb, idle 3 h) since 10:42" in status(machine, leases)


def test_who_keeps_to_its_width_whatever_the_names():
    idle = Owner("kernel", notebook=f"/x/{'n' * 90}.ipynb", idle_since="2026-11-01T09:00:00+00:00")
    machine = inventory(*(device(index, memory_used_bytes=140 * GIB) for index in range(16)))
    mine = lease(
        "a", range(16), "a-user-of-thirty-two-characters0", idle, pids=(4194301,) * 4, note="x " * 50
    )
    text = who(machine, [mine], waiters=(waiter("b", "b" * 32, owner=idle, gpus=16),))
    assert "  0–15  a-user-of-thirt…" in text
    assert "idle 30 days" in text
    assert all(len(line) <= 80 for line in text.split("\n"))


def test_many_pids_are_cut_short():
    text = who(leases=[lease("a", (0,), pids=tuple(range(100, 200)))])
    assert "pid 100, 101, 102, …" in text


def test_map_shows_ordinals_and_uuids():
    text = map_text("2,0")
    assert text.startswith('CUDA_VISIBLE_DEVICES: "2,0"')
    assert f"cuda:0 = physical 2  H200  {uuid(2)}" in text


def test_map_says_what_cuinit_answers():
    assert "cuInit fails with 100 (no device)" in map_text("")
    assert "cuInit fails with 101" in map_text("0,0")
    assert "There is no machine to ask" in map_text("0", Inventory("none", problem="No driver."))


def mig(uuid, index=0, profile="1g.18gb"):
    part = device(index, kind="mig", profile=profile, name="NVIDIA H200 MIG 1g.18gb")
    return dataclasses.replace(part, uuid=uuid)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (mig("MIG-1f2e3d4c-77aa"), "0 (MIG-1f2e3d4c 1g.18gb)"),
        (mig("MIG-1f2e3d4c-77aa", profile=None), "0 (MIG-1f2e3d4c)"),
        (mig("MIG-99999999-aabc"), "0 (MIG-99999999-aab 1g.18gb)"),
        (mig("MIG-9"), "0 (MIG-9 1g.18gb)"),
        (mig(None), "0 (MIG 1g.18gb)"),
        (mig(None, profile=None), "0 (MIG)"),
        (device(3), "3"),
    ],
)
def test_a_mig_device_is_named_by_the_start_of_its_uuid_that_is_enough(own, words):
    machine = inventory(device(3), mig("MIG-99999999-aaff"), own)
    assert device_words(own, machine) == words


def test_rows_of_mig_devices_keep_to_the_width():
    names = [f"MIG-{n}f2e3d4c-5d9e-4a86-9c04-71e6a3d8f25b" for n in range(4)]
    parts = [mig(name, 15, "1g.10gb+me") for name in names]
    machine = inventory(device(15, mig_mode=True, problem="in MIG mode"), *parts)
    owner = Owner("kernel", notebook=f"/x/{'n' * 90}.ipynb")
    leases = []
    for lease_id, uuids in (("a", names[:1]), ("b", names[1:3])):
        one = lease(lease_id, (15,) * len(uuids), "u" * 32, owner, since="2026-11-30T18:40:00+00:00")
        record = dataclasses.replace(one.record, uuids=tuple(uuids))
        leases.append(dataclasses.replace(one, record=record))
    texts = status(machine, leases), who(machine, leases)
    for text in texts:
        assert all(len(line) <= 80 for line in text.split("\n")), text
    rows = " ".join(texts[1].split())
    assert "15 (MIG) u" in rows
    assert "MIG-0f2e3d4c 1g.10gb+me; pid 4711" in rows
    assert "15 (2 MIG) u" in rows
    assert "MIG-1f2e3d4c 1g.10gb+me; MIG-2f2e3d4c 1g.10gb+me; pid 4711" in rows
    assert "Not leased: 15 (MIG-3f2e3d4c 1g.10gb+me) free." in rows


def test_who_leaves_out_reasons_that_say_nothing_to_others():
    usual = (USUAL_REASON, f"physical 0 is {HAD_LAST_TIME}", HELD_ALREADY, SHARED_ALREADY)
    assert "chosen" not in who(leases=[lease("a", (0,), because=usual)])
    text = who(leases=[lease("a", (0,), because=("model H200", *usual))])
    assert text.split("chosen: ")[1].startswith("model H200\n")


def test_who_tells_a_lease_inside_another_from_one_inside_none_that_lives():
    inner = lease("b", (0,), "bob", ancestors=("a" * 15,))
    assert "inside another lease" in who(leases=[lease("a", (0, 1)), inner])
    text = who(leases=[inner])
    assert "inside a lease that has ended" in " ".join(text.split())
    assert "another" not in text


def test_what_is_not_open_is_a_sentence():
    rules = RulesShown(reserved={uuid(3): "reserved for alice"})
    view = who_view(dataclasses.replace(overview(), rules=rules), NOW)
    assert view.lines[-1] == "Not open to you: 3 reserved for alice."
    rules = RulesShown(reserved={uuid(3): "kept for the course."})
    view = who_view(dataclasses.replace(overview(), rules=rules), NOW)
    assert view.lines[-1] == "Not open to you: 3 kept for the course."
