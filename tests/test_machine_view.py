from support_cli import GIB, NOW, device, inventory, lease, overview, using, uuid, waiter

from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.machine_view import map_view, status_view, who_view
from jupyter_gpu.core.overview import Leasing
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
    part = device(0, kind="mig", name="NVIDIA H200 MIG 1g.18gb", profile="1g.18gb")
    text = status(inventory(whole, part, device(1, problem="GPU 1 is lost; reboot.")))
    assert "0 (MIG 1g.18gb)" in text
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
        "Not leased: 3 free",
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
