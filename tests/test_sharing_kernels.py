"""Sharing in real kernels: under Jupyter servers with the provisioner, and through the wrapper."""

import asyncio
import json
import os
import signal
from fractions import Fraction

import pytest
from doubles import gpu as double
from doubles.fixtures import driver_double, driver_libraries  # noqa: F401 - fixtures
from jupyter_client.manager import AsyncKernelManager
from kernels import StartedByArgv, leases, queue, start_argv
from support_cli import gpu, gpu_json
from support_server import Server, wait_until
from traitlets.config import Config

import jupyter_gpu
from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.grant_log import GrantLog
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.records import records_path
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.grants import Ended, Granted
from jupyter_gpu.core.layout import DEVICE_UNITS, LEASE_IDS

H200 = {"name": "NVIDIA H200", "memory_total_bytes": 150_754_820_096}
PARTS = [
    {"profile": "1g.18gb", "memory_total_bytes": 18 * 2**30},
    {"profile": "3g.71gb", "memory_total_bytes": 71 * 2**30},
]
JAX, JAX_NEW = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"
SEEN = f"""
import json, os
names = ["CUDA_VISIBLE_DEVICES", "JUPYTER_GPU_CAPS", "{JAX}", "{JAX_NEW}"]
print(json.dumps([os.environ.get(name) for name in names]))
"""


@pytest.fixture(autouse=True)
def _no_rules_of_the_computers_own(monkeypatch, tmp_path):
    """Keep what ``/etc/jupyter-gpu.toml`` may say on this computer out of these tests."""
    path = tmp_path / "no-rules.toml"
    path.touch()
    monkeypatch.setenv("JUPYTER_GPU_CONFIG", str(path))


@pytest.fixture
def place(lease_directory):
    return Place(lease_directory, "given")


@pytest.fixture
def install(capsys):
    """A function that installs a kernelspec for so much, where only the test finds it."""

    def put(name, *options):
        code, _, error = gpu(capsys, "install", "--user", "--name", name, *options)
        assert code == 0, error
        return name

    return put


@pytest.fixture
def server(lease_directory, simulate):
    """A server over a simulated machine with two GPUs."""
    simulate("2xH200")
    with Server(lease_directory.parent) as server:
        yield server


@pytest.fixture
def small_server(lease_directory, simulate):
    """A server over a simulated machine with one GPU."""
    simulate("1xH200")
    with Server(lease_directory.parent) as server:
        yield server


@pytest.fixture
def rules(tmp_path, monkeypatch):
    path = tmp_path / "rules.toml"
    monkeypatch.setenv("JUPYTER_GPU_CONFIG", str(path))
    path.write_text("")
    return path


def started(answer):
    assert answer.status == 201, answer.body
    return answer.body["kernel"]["id"]


def refused(answer):
    assert answer.status == 500, answer.body
    return answer.body["message"]


def seen(server, kernel):
    return json.loads(server.run(kernel, SEEN))


def use(server, kernel, line):
    said = server.run(kernel, f"import json\nused = %gpu use {line} --json\nprint(json.dumps(used))")
    return json.loads(said) if said.startswith("{") else said


def restart(server, kernel):
    old = wait_until(lambda: server.kernel_process(kernel))
    assert server.request("POST", f"kernels/{kernel}/restart").status == 200
    wait_until(lambda: server.kernel_process(kernel) not in (None, old))


def change(server, session, name):
    answer = server.request("PATCH", f"sessions/{session}", {"kernel": {"name": name}})
    assert answer.status == 200, answer.body
    return answer.body["kernel"]["id"]


def parts():
    """What the leases have, and that none of them is odd."""
    found = leases()
    assert [lease.note for lease in found] == [None] * len(found)
    return sorted((lease.record.indices, lease.share) for lease in found)


def free_units(place):
    """What nobody has of each device."""
    with LeaseStore(place) as store:
        devices = jupyter_gpu.inventory().devices
        return [Fraction(store.free_units((), d.uuid), DEVICE_UNITS) for d in devices]


def living_ids(place):
    fd = os.open(place.lock_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return len(list(locks.locked_ranges(fd, LEASE_IDS)))
    finally:
        os.close(fd)


def entries(place):
    return [entry for user in GrantLog(place).read().users for entry in user.entries]


QUARTER, HALF = Fraction(1, 4), Fraction(1, 2)


def test_kernels_with_quarters_stand_on_one_gpu_and_a_whole_one_on_another(server, place):
    quarters = [
        started(server.open_notebook(f"{n}.ipynb", "pytorch-quarter-gpu")) for n in range(2)
    ]
    assert parts() == [((0,), QUARTER)] * 2
    for kernel in quarters:
        assert seen(server, kernel)[0] == "0"
        assert seen(server, kernel)[2] == "0.25"
    assert "¼ GPU" in server.run(quarters[0], "print(get_ipython().run_line_magic('gpu', 'who'))")
    whole = started(server.open_notebook("whole.ipynb"))
    assert seen(server, whole) == ["1", None, None, None]
    assert free_units(place) == [HALF, 0]
    server.request("DELETE", f"kernels/{quarters[0]}")
    assert free_units(place) == [3 * QUARTER, 0]


def test_a_kernel_changes_among_shares_and_its_caps_go_with_them(server, place, install):
    install("mine", "--gpus=1/4", "--env", f"{JAX_NEW}=0.9")
    kernel = started(server.open_notebook("a.ipynb", "mine"))
    (before,) = leases()
    assert seen(server, kernel) == ["0", f'{{"{JAX_NEW}": ["0.25", "0.9"]}}', None, "0.25"]
    for line, share, cap in (("1", 1, None), ("1/4", QUARTER, "0.25"), ("1/2", HALF, "0.5")):
        answer = use(server, kernel, line)
        assert answer["lease"]["share"] == share
        (lease,) = leases()
        assert (lease.record.id, lease.share, lease.record.origin) == (before.record.id, share, "magic")
        assert bool(lease.record.caps) == (cap is not None)
        visible, caps, _, jax = seen(server, kernel)
        assert (visible, jax, caps is None) == ("0", cap or "0.9", cap is None)
        assert free_units(place) == [1 - share, 1]
        restart(server, kernel)
        assert seen(server, kernel) == [visible, caps, None, jax]
        assert (parts(), free_units(place)) == ([((0,), share)], [1 - share, 1])
    use(server, kernel, "0")
    assert seen(server, kernel) == ["-1", None, None, "0.9"]
    assert (leases(), free_units(place)) == ((), [1, 1])
    restart(server, kernel)
    assert seen(server, kernel) == ["-1", None, None, "0.9"]
    assert (leases(), free_units(place)) == ((), [1, 1])
    use(server, kernel, "1/4")
    restart(server, kernel)
    assert seen(server, kernel)[3] == "0.25"
    assert free_units(place) == [3 * QUARTER, 1]


def test_a_share_that_cannot_grow_stays_as_it_is(small_server, place):
    server = small_server
    kernel = started(server.open_notebook("a.ipynb", "pytorch-quarter-gpu"))
    with jupyter_gpu.acquire("1/2"):
        assert "No GPU is free" in use(server, kernel, "1")
        assert "No ¾ GPU is free" in use(server, kernel, "3/4")
        assert seen(server, kernel)[2] == "0.25"
        assert use(server, kernel, "1/2")["lease"]["share"] == 0.5
    assert (parts(), free_units(place)) == ([((0,), HALF)], [HALF])


def test_a_share_is_not_made_smaller_under_a_program_that_has_leased_of_it(small_server, place):
    server = small_server
    kernel = started(server.open_notebook("a.ipynb", "pytorch-1gpu"))
    begin = (
        "import os, subprocess, sys\n"
        "code = 'import jupyter_gpu; l = jupyter_gpu.acquire(1); print(1, flush=True); input()'\n"
        "child = subprocess.Popen([sys.executable, '-c', code], stdin=-1, stdout=-1)\n"
        "print(child.stdout.readline())"
    )
    assert server.run(kernel, begin) == "b'1\\n'"
    assert "cannot be made a smaller share now" in use(server, kernel, "1/4")
    assert free_units(place) == [0]
    server.run(kernel, "child.communicate(b'\\n')")
    assert use(server, kernel, "1/4")["lease"]["share"] == 0.25
    assert free_units(place) == [3 * QUARTER]


def test_a_change_of_kernel_takes_over_from_a_share_and_from_a_whole(
    small_server, place, install
):
    server = small_server
    install("half", "--gpus=1/2")
    answer = server.open_notebook("a.ipynb", "pytorch-quarter-gpu")
    session = answer.body["id"]
    for name, share, cap in (
        ("half", HALF, "0.5"),
        ("pytorch-1gpu", 1, None),
        ("pytorch-quarter-gpu", QUARTER, "0.25"),
        ("pytorch-1gpu", 1, None),
    ):
        kernel = change(server, session, name)
        wait_until(lambda: len(leases()) == 1)
        assert (parts(), free_units(place)) == ([((0,), share)], [1 - share])
        assert seen(server, kernel)[2] == cap
    assert living_ids(place) == 1
    server.request("DELETE", f"sessions/{session}")
    wait_until(lambda: not leases())
    assert free_units(place) == [1]


DIE_AT = """
import os, pkgutil, signal
import jupyter_gpu.switch
def die_at(path, line):
    names, _, name = path.rpartition(".")
    owner = pkgutil.resolve_name(names)
    really = getattr(owner, name)
    def dying(*arguments, **options):
        really(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, dying)
    get_ipython().run_line_magic("gpu", line)
"""
TAKEN = "jupyter_gpu.adapters.claim.Claim.take"
WRITTEN = "jupyter_gpu.adapters.witness.Witness.publish"
UNLOCKED = "jupyter_gpu.adapters.claim.Claim.keep_only"
DEATHS = [
    ("pytorch-1gpu", "1/4", TAKEN, 1),
    ("pytorch-1gpu", "1/4", WRITTEN, QUARTER),
    ("pytorch-1gpu", "1/4", UNLOCKED, 1),
    ("pytorch-quarter-gpu", "1/2", TAKEN, QUARTER),
    ("pytorch-quarter-gpu", "1/2", WRITTEN, HALF),
    ("pytorch-quarter-gpu", "1", TAKEN, QUARTER),
    ("pytorch-quarter-gpu", "0", WRITTEN, 0),
    ("pytorch-1gpu", "0", WRITTEN, 0),
]


def test_a_kernel_killed_in_the_middle_of_a_change_leaves_nothing_half_done(server, place):
    for number, (name, line, point, share) in enumerate(DEATHS):
        kernel = started(server.open_notebook(f"{number}.ipynb", name))
        old = server.kernel_process(kernel)
        with server.client(kernel) as client:
            client.execute(DIE_AT + f"die_at({point!r}, 'use {line}')")
            wait_until(
                lambda k=kernel, o=old: server.kernel_process(k) not in (None, o),
                seconds=30,
                what=f"the restart of {name} after {line} at {point}: {server.log[-800:]}",
            )
        visible, _, jax, _ = seen(server, kernel)
        case = (name, line, point)
        assert parts() == ([((0,), share)] if share else []), case
        assert free_units(place) == [1 - share, 1], case
        assert visible == ("0" if share else "-1"), case
        assert jax == (f"{float(share)}" if 0 < share < 1 else None), case
        assert living_ids(place) == 1, case
        server.request("DELETE", f"kernels/{kernel}")
        wait_until(lambda: not living_ids(place))


def test_a_kernel_on_a_mig_device_sees_it_by_its_uuid(lease_directory, simulate, install):
    machine = simulate({"gpus": [{**H200, "mig": PARTS}, H200]})
    install("large", "--gpus=mig:3g.71gb")
    with Server(lease_directory.parent) as server:
        kernel = started(server.open_notebook("a.ipynb", "large"))
        (part,) = [device for device in machine.devices if device.profile == "3g.71gb"]
        assert seen(server, kernel) == [part.uuid, None, None, None]
        assert "MIG device 3g.71gb is free" in refused(server.open_notebook("b.ipynb", "large"))
        whole = started(server.open_notebook("c.ipynb"))
        assert seen(server, whole)[0] == machine.devices[-1].uuid


def test_neighbours_are_chosen_and_the_reason_is_kept(lease_directory, simulate, install):
    simulate({"gpus": [{**H200, "links": {"2": "nvlink"}}, H200, H200]})
    install("pair", "--gpus=2", "--topology=require")
    with Server(lease_directory.parent) as server:
        kernel = started(server.open_notebook("a.ipynb", "pair"))
        assert seen(server, kernel)[0] == "0,2"
        (lease,) = leases()
        assert "NVLink" in " ".join(lease.record.because)


def test_a_notebook_that_knows_what_it_needs_gets_it(server, place):
    notebook = {
        "cells": [], "nbformat": 4, "nbformat_minor": 5,
        "metadata": {"jupyter_gpu": {"gpus": "1/4"}},
    }  # fmt: skip
    (server.root / "lesson.ipynb").write_text(json.dumps(notebook))
    kernel = started(server.open_notebook("lesson.ipynb"))
    (lease,) = leases()
    assert (lease.share, lease.record.origin) == (QUARTER, "notebook")
    restart(server, kernel)
    assert seen(server, kernel)[2] == "0.25"
    notebook["metadata"]["jupyter_gpu"] = {"gpus": 2}
    (server.root / "more.ipynb").write_text(json.dumps(notebook))
    kernel = started(server.open_notebook("more.ipynb"))
    assert "more.ipynb asks for 2 GPUs; this kernelspec allows 1" in server.run(kernel, "pass")
    assert seen(server, kernel)[0] == "1"


class TestRules:
    """The administrator's file stands against kernels too."""

    def test_a_limit_is_told_in_the_refusal(self, rules, server):
        rules.write_text("max_devices_per_user = '1/2'\ndefault_wait = 0\n")
        for name in "ab":
            started(server.open_notebook(f"{name}.ipynb", "pytorch-quarter-gpu"))
        said = refused(server.open_notebook("c.ipynb", "pytorch-quarter-gpu"))
        assert said.startswith("You hold ½ device, and the limit is ½: max_devices_per_user = 1/2")
        assert "the limit is ½" in refused(server.open_notebook("d.ipynb"))

    def test_a_change_of_kernel_is_not_counted_twice(self, rules, small_server):
        rules.write_text("max_devices_per_user = 1\n")
        answer = small_server.open_notebook("a.ipynb")
        kernel = change(small_server, answer.body["id"], "pytorch-1gpu")
        assert seen(small_server, kernel)[0] == "0"
        assert use(small_server, kernel, "1/4")["lease"]["share"] == 0.25
        assert use(small_server, kernel, "1")["lease"]["share"] == 1

    def test_a_broken_file_gives_no_gpu_and_leaves_kernels_without_one_alone(
        self, rules, server
    ):
        rules.write_text("max_gpus = 1\n")
        said = refused(server.open_notebook("a.ipynb"))
        assert said.startswith("No GPU is granted: the file of rules cannot be used.")
        assert str(rules) in said
        kernel = started(server.open_notebook("b.ipynb", "pytorch-cpu"))
        assert seen(server, kernel)[0] == "-1"
        assert leases() == ()

    def test_a_device_on_hold_is_no_kernels(self, rules, server, capsys):
        assert gpu(capsys, "hold", "0", "--reason", "fan")[0] == 0
        kernel = started(server.open_notebook("a.ipynb"))
        assert seen(server, kernel)[0] == "1"
        rules.write_text("default_wait = 0\n")
        assert "fan" in refused(server.open_notebook("b.ipynb", "pytorch-quarter-gpu"))


@pytest.fixture
def wrapped(tmp_path):
    """Start the wrapper as VS Code does."""
    kernels = []

    def start(*options, environ=None, name="pytorch-1gpu"):
        started_kernel = StartedByArgv(*start_argv(tmp_path, name, options=options, environ=environ))
        kernels.append(started_kernel)
        return started_kernel.wait_until_ready()

    yield start
    for kernel in kernels:
        kernel.close()


def look(kernel):
    return json.loads(kernel.run(SEEN)[0])


class TestWrapper:
    """Kernels whose front end starts ``argv`` itself."""

    def test_a_share_changes_and_ends_with_the_kernel(self, simulate, wrapped, place, eventually):
        simulate("1xH200")
        kernel = wrapped(name="pytorch-quarter-gpu")
        assert look(kernel)[::2] == ["0", "0.25"]
        assert parts() == [((0,), QUARTER)]
        kernel.run("%gpu use 1")
        assert look(kernel) == ["0", None, None, None]
        assert free_units(place) == [0]
        kernel.run("%gpu use 1/2")
        assert (look(kernel)[2], free_units(place)) == ("0.5", [HALF])
        kernel.run("%gpu use 0")
        assert (look(kernel), leases()) == (["-1", None, None, None], ())
        kernel.run("%gpu use 1/4")
        kernel.process.kill()
        eventually(lambda: not leases())
        one, two, three, end, again = entries(place)
        assert [entry.share for entry in (one, two, three, again)] == [QUARTER, 1, HALF, QUARTER]
        assert one.lease == two.lease == three.lease == end.lease != again.lease
        assert (type(end), end.exact) == (Ended, True)
        with LeaseStore(place, write=True) as store:
            store.sweep()
        assert (entries(place)[-1].lease, entries(place)[-1].exact) == (again.lease, False)

    def test_a_mig_device(self, simulate, wrapped):
        machine = simulate({"gpus": [{**H200, "mig": PARTS}]})
        kernel = wrapped("--gpus=mig:1g.18gb")
        assert look(kernel)[0] == machine.devices[1].uuid, kernel.said()
        second = wrapped()
        assert look(second)[0] == "-1"
        assert "Its MIG profiles: 1g.18gb, 3g.71gb" in second.said()

    def test_broken_rules_give_a_kernel_without_gpu_that_says_why(self, simulate, wrapped, rules):
        simulate("1xH200")
        rules.write_text("max_gpus = 1\n")
        kernel = wrapped()
        assert look(kernel)[0] == "-1"
        assert "This kernel has no GPU." in kernel.said()
        assert "the file of rules cannot be used" in kernel.said()

    def test_the_notebooks_own_request_counts_where_its_path_is_known(
        self, simulate, wrapped, tmp_path
    ):
        simulate("1xH200")
        path = tmp_path / "lesson.ipynb"
        metadata = {"jupyter_gpu": {"gpus": "1/4"}}
        path.write_text(
            json.dumps({"cells": [], "nbformat": 4, "nbformat_minor": 5, "metadata": metadata})
        )
        kernel = wrapped(environ={"JPY_SESSION_NAME": str(path)})
        assert look(kernel)[2] == "0.25"
        assert leases()[0].record.origin == "notebook"


@pytest.mark.usefixtures("driver_double")
class TestCPUs:
    """Kernels beside their GPU: the doubles name CPUs that this computer has."""

    @pytest.fixture
    def near(self, driver_double, monkeypatch):  # noqa: F811
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) < 2:
            pytest.skip("there is one CPU: nothing to choose from")
        driver_double.write(double(0, cpus=[allowed[1]]), double(1, cpus=allowed))
        return {
            "LD_LIBRARY_PATH": str(driver_double.libraries),
            "JUPYTER_GPU_DOUBLE": str(driver_double.path),
        }, allowed

    def test_a_kernel_runs_on_the_cpus_near_its_devices(self, near, lease_directory, install):
        environ, allowed = near
        install("near", "--gpus=1", "--cpu-affinity=closest")
        code = "import os; print(sorted(os.sched_getaffinity(0)))"
        with Server(lease_directory.parent, **environ) as server:
            kernel = started(server.open_notebook("a.ipynb", "near"))
            assert server.run(kernel, code) == str([allowed[1]])
            restart(server, kernel)
            assert server.run(kernel, code) == str([allowed[1]])
            other = started(server.open_notebook("b.ipynb", "near"))
            assert server.run(other, code) == str(allowed)

    def test_the_wrapper_binds_itself(self, near, wrapped):
        environ, allowed = near
        kernel = wrapped("--cpu-affinity=closest", environ=environ)
        assert kernel.run("import os; print(os.sched_getaffinity(0))")[0] == f"{{{allowed[1]}}}\n"


class TestLog:
    """What is logged of a kernel's life."""

    def test_restarts_and_changes_end_once(self, server, place):
        kernel = started(server.open_notebook("a.ipynb", "pytorch-quarter-gpu"))
        restart(server, kernel)
        use(server, kernel, "1")
        restart(server, kernel)
        server.request("DELETE", f"kernels/{kernel}")
        wait_until(lambda: not leases())
        found = entries(place)
        assert [type(entry) for entry in found] == [Granted, Granted, Ended]
        assert len({entry.lease for entry in found}) == 1
        assert [entry.share for entry in found[:2]] == [QUARTER, 1]
        assert found[-1].exact

    def test_what_was_given_up_before_the_end_has_ended_once(self, server, place):
        kernel = started(server.open_notebook("a.ipynb"))
        use(server, kernel, "0")
        server.request("DELETE", f"kernels/{kernel}")
        wait_until(lambda: not living_ids(place))
        assert [type(entry) for entry in entries(place)] == [Granted, Ended]

    def test_a_kernel_killed_with_its_server_is_ended_by_a_sweep(self, server, place):
        kernel = started(server.open_notebook("a.ipynb"))
        pid = server.kernel_process(kernel)
        server.process.kill()
        server.process.wait()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not leases())
        assert [type(entry) for entry in entries(place)] == [Granted]
        with LeaseStore(place, write=True) as store:
            store.sweep()
        assert [(type(entry), entry.exact) for entry in entries(place)[1:]] == [(Ended, False)]


async def test_a_start_that_is_cancelled_leaves_no_ticket_and_no_record(
    eight_gpus, place, eventually
):
    with jupyter_gpu.acquire(8):
        config = Config({"GPUProvisioner": {"wait": "60s"}})
        manager = AsyncKernelManager(kernel_name="pytorch-quarter-gpu", config=config)
        start = asyncio.ensure_future(manager.start_kernel())
        await asyncio.to_thread(eventually, queue)
        assert list(records_path(place).glob("waiting-*.json"))
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert queue() == ()
        assert not list(records_path(place).glob("*waiting-*"))
        assert living_ids(place) == 1
        await manager.cleanup_resources()
        manager.cleanup_connection_file()


def test_who_shows_the_share_and_the_notebook_of_a_kernel(server, capsys):
    started(server.open_notebook("a.ipynb", "pytorch-quarter-gpu"))
    (row,) = gpu_json(capsys, "who")["leases"]
    assert (row["share"], row["kind"], row["origin"]) == (0.25, "kernel", "kernelspec")
    assert row["notebook"].endswith("/a.ipynb")
