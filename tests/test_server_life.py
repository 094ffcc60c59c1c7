"""The life of leases over real Jupyter servers: starts, crashes, restarts, changes, ends."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from support_server import Server, command_line, leads_session, wait_until

from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.adapters.store import LeaseStore

PRETEND_THE_SERVER_LIVES = "import os; os.getppid = lambda: {server}"


@pytest.fixture
def servers(lease_directory, simulate):
    """A function that starts servers over one simulated machine; all end with the test."""
    running = []

    def start(machine="4xH200", name="server", arguments=(), **environ):
        if not running:
            simulate(machine)
        server = Server(lease_directory.parent, name=name, arguments=arguments, **environ)
        server.__enter__()
        running.append(server)
        return server

    yield start
    for server in running:
        server.__exit__()


def holdings():
    with LeaseStore(find_place(os.environ, simulated=True)) as store:
        return store.holdings()


def leased_uuids():
    return {uuid for lease in holdings().leases for uuid in lease.record.uuids}


def write_spec(name, gpus=1, *, argv=None, env=None, **config):
    """Put a kernelspec into the test's own data folder."""
    folder = Path(os.environ["JUPYTER_DATA_DIR"]) / "kernels" / name
    folder.mkdir(parents=True, exist_ok=True)
    stanza = {"provisioner_name": "gpu-provisioner", "config": {"gpus": gpus, **config}}
    spec = {
        "argv": argv or ["python", "-m", "jupyter_gpu.kernel", "-f", "{connection_file}"],
        "display_name": name,
        "language": "python",
        "env": env or {},
        "metadata": {"kernel_provisioner": stanza},
    }
    (folder / "kernel.json").write_text(json.dumps(spec))
    return name


def started(answer):
    assert answer.status == 201, answer.body
    return answer.body["kernel"]["id"] if "kernel" in answer.body else answer.body["id"]


class Watch:
    """Asks again and again from outside whether a device is free, and who claims it."""

    def __init__(self, uuid):
        self.uuid, self.probes, self.seen_free = uuid, 0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        with LeaseStore(find_place(os.environ, simulated=True)) as store:
            while not self._stop.is_set():
                self.seen_free += store.is_free((), self.uuid)
                self.probes += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join()


def test_five_kernels_on_four_devices_give_four_different_ones_and_a_refusal_that_names_all(
    servers,
):
    one, two = servers(name="one"), servers(name="two")
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        answers = list(
            pool.map(lambda n: (one, two)[n % 2].open_notebook(f"n{n}.ipynb"), range(5))
        )
    granted = [answer for answer in answers if answer.status == 201]
    (refused,) = [answer for answer in answers if answer.status != 201]
    assert len(granted) == 4
    assert len(leased_uuids()) == 4
    session = granted[0].body
    owner = one if one.get(f"sessions/{session['id']}").status == 200 else two
    owner.request(
        "PATCH", f"sessions/{session['id']}", {"path": "now.ipynb", "name": "now.ipynb"}
    )
    now = str(owner.root / "now.ipynb")
    wait_until(lambda: now in {lease.record.owner.notebook for lease in holdings().leases})
    others = [answer.body["path"] for answer in granted[1:]]

    for answer in (
        one.open_notebook("late.ipynb"),
        two.request("POST", "kernels", {"name": "pytorch-1gpu"}),
    ):
        message = answer.body["message"]
        assert message.startswith("No GPU is free (4 on this machine).\n")
        assert now in message
        assert all(path in message for path in others)
        assert message.count(" root ") == 4
        assert message.count("since ") == 4
        assert "Traceback" not in message
    assert refused.body["message"].startswith("No GPU is free")
    assert "Traceback" not in one.log + two.log
    assert one.logs("got physical")
    wait_until(lambda: "was refused: No GPU is free" in one.log + two.log)


@pytest.mark.slow
def test_twenty_restarts_by_hand_and_by_crash_never_free_the_device(servers):
    server = servers("1xH200", arguments=["--KernelRestarter.restart_limit=100"])
    kernel = started(server.open_notebook("a.ipynb"))
    (uuid,) = leased_uuids()
    least_probes = None
    for turn in range(20):
        old = wait_until(lambda: server.kernel_process(kernel), what="the kernel")
        with Watch(uuid) as watch:
            if turn % 2:
                os.kill(old, signal.SIGKILL)
            else:
                assert server.request("POST", f"kernels/{kernel}/restart").status == 200
            wait_until(
                lambda old=old: server.kernel_process(kernel) not in (None, old),
                what="the restart",
            )
            assert server.visible(kernel) == "0"
        assert watch.seen_free == 0
        assert watch.probes >= 1000, f"only {watch.probes} probes"
        least_probes = min(watch.probes, least_probes or watch.probes)
    print(f"least probes in a restart: {least_probes}")


def test_the_next_start_succeeds_at_once_after_a_shutdown(servers):
    server = servers("1xH200")
    kernel = started(server.open_notebook("a.ipynb"))
    assert server.request("DELETE", f"kernels/{kernel}").status == 204
    begun = time.monotonic()
    started(server.open_notebook("b.ipynb"))
    assert time.monotonic() - begun < 2


def test_a_server_killed_together_with_its_kernels_leaves_nothing(servers):
    one, two = servers("1xH200", name="one"), servers(name="two")
    kernel = started(one.open_notebook("a.ipynb"))
    pid = wait_until(lambda: one.kernel_process(kernel))
    one.process.kill()
    os.kill(pid, signal.SIGKILL)
    started(two.open_notebook("b.ipynb"))


def test_a_kernel_that_outlives_its_server_stays_leased_until_it_ends(servers):
    one, two = servers("1xH200", name="one"), servers(name="two")
    kernel = started(one.open_notebook("a.ipynb"))
    one.run(kernel, PRETEND_THE_SERVER_LIVES.format(server=one.process.pid))
    pid = wait_until(lambda: one.kernel_process(kernel))
    one.process.kill()
    one.process.wait()
    (lease,) = holdings().leases
    assert lease.user == "root"
    assert lease.record.owner.notebook == str(one.root / "a.ipynb")
    assert lease.pids == (pid,)
    assert two.open_notebook("b.ipynb").status == 500
    os.kill(pid, signal.SIGKILL)
    started(two.open_notebook("b.ipynb"))


FORK_A_CHILD = """
import os, time
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)  # the restarter kills the kernel's own process group
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:  # the kernel's ports, which its next life needs
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                os.close(fd)
        except OSError:
            continue
    time.sleep(600)
    os._exit(0)
print(pid)
"""


def test_a_forked_child_keeps_the_lease_of_its_dead_kernel_and_is_named(servers):
    server = servers("1xH200")
    kernel = started(server.open_notebook("a.ipynb"))
    child = int(server.run(kernel, FORK_A_CHILD))
    pid = wait_until(lambda: server.kernel_process(kernel))
    server.process.kill()
    server.process.wait()
    os.kill(pid, signal.SIGKILL)
    lease = wait_until(
        lambda: next((one for one in holdings().leases if one.state == "draining"), None)
    )
    assert lease.pids == (child,)
    assert str(child) in lease.note
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: not holdings().leases)


def test_a_worker_of_the_kernel_before_a_restart_is_named(servers):
    server = servers("1xH200")
    kernel = started(server.open_notebook("a.ipynb"))
    child = int(server.run(kernel, FORK_A_CHILD))
    old = wait_until(lambda: server.kernel_process(kernel))
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: server.kernel_process(kernel) not in (None, old))
    assert server.visible(kernel) == "0"
    (lease,) = holdings().leases
    assert child in lease.pids
    assert server.logs(f"process {child} of kernel {kernel}")
    os.kill(child, signal.SIGKILL)


def change_kernel(server, session, name="pytorch-1gpu"):
    return server.request("PATCH", f"sessions/{session}", {"kernel": {"name": name}})


def test_on_one_device_a_change_of_kernel_hands_it_over(servers):
    server = servers("1xH200")
    session = server.open_notebook("a.ipynb").body
    (uuid,) = leased_uuids()
    with Watch(uuid) as watch:
        changed = change_kernel(server, session["id"])
        assert changed.status == 200, changed.body
    assert watch.seen_free == 0
    assert changed.body["kernel"]["id"] != session["kernel"]["id"]
    assert server.visible(changed.body["kernel"]["id"]) == "0"
    wait_until(lambda: len(holdings().leases) == 1)
    assert server.logs("taken over")


@pytest.mark.parametrize("new", [{"path": "b.ipynb"}, {"path": "b.ipynb", "name": "b.ipynb"}])
def test_after_a_rename_a_change_of_kernel_still_hands_the_device_over(servers, new):
    server = servers("1xH200")
    session = server.open_notebook("a.ipynb").body
    assert server.request("PATCH", f"sessions/{session['id']}", new).status == 200
    changed = change_kernel(server, session["id"])
    assert changed.status == 200, changed.body
    wait_until(lambda: len(holdings().leases) == 1)


@pytest.mark.parametrize("new", [{"path": "b.ipynb"}, {"path": "b.ipynb", "name": "b.ipynb"}])
def test_a_new_notebook_with_the_old_name_of_a_renamed_one_takes_nothing_over(servers, new):
    server = servers("1xH200")
    session = server.open_notebook("Untitled.ipynb").body
    server.request("PATCH", f"sessions/{session['id']}", new)
    name = write_spec("no-wait", wait=0)
    refused = server.open_notebook("Untitled.ipynb", name)
    assert refused.status == 500
    assert "No GPU is free" in refused.body["message"]
    assert server.visible(session["kernel"]["id"]) == "0"


def test_a_hand_over_whose_new_start_fails_leaves_the_device_with_the_old_kernel(servers):
    server = servers("1xH200")
    session = server.open_notebook("a.ipynb").body
    (uuid,) = leased_uuids()
    broken = write_spec("broken", argv=["/nowhere/python", "{connection_file}"])
    with Watch(uuid) as watch:
        assert change_kernel(server, session["id"], broken).status == 501
    assert watch.seen_free == 0
    (lease,) = holdings().leases
    assert lease.record.owner.kernel_id == session["kernel"]["id"]
    assert server.visible(session["kernel"]["id"]) == "0"
    assert change_kernel(server, session["id"]).status == 200


def test_a_change_to_more_devices_keeps_those_there_are(servers):
    server = servers("2xH200")
    session = server.open_notebook("a.ipynb").body
    changed = change_kernel(server, session["id"], "pytorch-2gpus")
    assert changed.status == 200, changed.body
    assert server.visible(changed.body["kernel"]["id"]) == "0,1"
    wait_until(lambda: len(holdings().leases) == 1)
    fewer = change_kernel(server, session["id"])
    wait_until(lambda: len(leased_uuids()) == 1)
    assert server.visible(fewer.body["kernel"]["id"]) == "0"


def test_a_refused_start_leaves_nothing_and_the_server_ends_on_sigterm(servers):
    server = servers("1xH200")
    started(server.open_notebook("a.ipynb"))
    files = sorted(server.runtime.iterdir())
    name = write_spec("no-wait", wait=0)
    for number in range(3):
        assert server.open_notebook(f"b{number}.ipynb", name).status == 500
    assert sorted(server.runtime.iterdir()) == files
    assert not holdings().waiters
    begun = time.monotonic()
    server.process.terminate()
    server.process.wait(timeout=10)
    assert time.monotonic() - begun < 5
    assert not holdings().leases


def test_a_start_that_cannot_run_gives_the_device_back_and_the_server_ends_on_sigterm(servers):
    server = servers("1xH200")
    broken = write_spec("broken", argv=["/nowhere/python", "{connection_file}"])
    assert server.open_notebook("a.ipynb", broken).status == 500
    started(server.open_notebook("b.ipynb"))
    server.process.terminate()
    server.process.wait(timeout=5)


def test_a_kernel_that_keeps_dying_gives_its_device_back(servers):
    server = servers("1xH200")
    dying = write_spec("dying", argv=["python", "-c", "raise SystemExit(1)", "{connection_file}"])
    started(server.open_notebook("a.ipynb", dying))
    wait_until(lambda: not holdings().leases, seconds=30, what="the restarter to give up")
    assert server.logs("kept dying")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": 9}, "9 GPUs are asked for, and this machine has 4 GPUs"),
        ({"gpus": -1}, "gpus: -1 is not a number of GPUs"),
        ({"gpus": "two"}, "gpus: 'two' is not a number of GPUs"),
        ({"gpus": 1.5}, "gpus: 1.5 is not a number of GPUs"),
        ({"gpus": "0/4"}, "gpus: '0/4' is not a share above 0"),
        ({"devices": []}, "devices: [] is not a list"),
        ({"devices": ["GPU-ffff"]}, "There is no device GPU-ffff here"),
        ({"model": "L4"}, "1 GPU of model L4 is asked for, and this machine has 4 GPUs"),
        ({"min_fre_memory": "1GiB"}, "There is no option 'min_fre_memory'"),
        ({"topology": "near"}, "topology: 'near' is not one of any, prefer, require"),
        ({"wait": "soon"}, "wait: 'soon' is not a time"),
    ],
)
def test_bad_requests_are_refused_at_once_by_name(one_server, options, words):
    name = write_spec("bad", **{"gpus": 1, **options})
    begun = time.monotonic()
    answer = one_server.open_notebook("bad.ipynb", name)
    assert time.monotonic() - begun < 2
    assert answer.status == 500
    assert words in answer.body["message"], answer.body
    assert not holdings().leases


@pytest.fixture
def one_server(servers):
    return servers("4xH200")


def test_limits_of_the_kernelspec_and_the_server_are_the_pool_and_are_told(servers):
    server = servers("4xH200", CUDA_VISIBLE_DEVICES="1,2,3")
    name = write_spec("limited", gpus=1, env={"CUDA_VISIBLE_DEVICES": "0,2"})
    kernel = started(server.open_notebook("a.ipynb", name))
    assert server.visible(kernel) == "2"
    assert server.logs("CUDA_VISIBLE_DEVICES=0,2 in the kernelspec's env")
    too_many = write_spec("too-many", gpus=2, env={"CUDA_VISIBLE_DEVICES": "0,2"})
    answer = server.open_notebook("b.ipynb", too_many)
    assert "CUDA_VISIBLE_DEVICES=1,2,3 in the environment" in answer.body["message"]
    assert "leaves 2" in answer.body["message"]


def test_a_stopped_holder_and_a_stopped_waiter_hold_up_nobody_else(servers):
    one, two = servers("2xH200", name="one"), servers(name="two")
    kernel = started(one.open_notebook("a.ipynb"))
    os.kill(wait_until(lambda: one.kernel_process(kernel)), signal.SIGSTOP)
    os.kill(one.process.pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        started(two.open_notebook("b.ipynb"))
        assert time.monotonic() - begun < 5
    finally:
        os.kill(one.process.pid, signal.SIGCONT)


def test_the_log_says_what_a_kernel_got_and_gave_back_and_no_secrets(servers):
    server = servers("1xH200")
    kernel = started(server.open_notebook("a.ipynb"))
    server.request("DELETE", f"kernels/{kernel}")
    assert server.logs("gave back physical 0")
    lines = [line for line in server.log.splitlines() if "GPU: kernel" in line]
    assert len(lines) == 2
    assert f"GPU: kernel {kernel} got physical 0" in lines[0]
    assert f"GPU: kernel {kernel} gave back physical 0" in lines[1]
    assert command_line(server.process.pid)
    assert "for-tests-only" not in "".join(lines)


def test_two_kernels_of_a_server_under_a_lease_part_what_it_has(
    lease_directory, simulate, servers
):
    simulate("4xH200")
    command = [sys.executable, "-m", "jupyter_gpu", "run", "--gpus", "2", "--"]
    no_wait = write_spec("no-wait", wait=0)
    with Server(lease_directory.parent, name="inner", command=command) as inner:
        kernels = [started(inner.open_notebook(f"{n}.ipynb")) for n in range(2)]
        assert sorted(inner.visible(kernel) for kernel in kernels) == ["0", "1"]
        refused = inner.open_notebook("c.ipynb", no_wait)
        message = " ".join(refused.body["message"].split())
        assert "the lease that this program runs under" in message
        outer = servers()
        assert outer.visible(started(outer.open_notebook("d.ipynb", "pytorch-2gpus"))) == "2,3"
        for kernel in kernels:
            inner.request("DELETE", f"kernels/{kernel}")
        kernel = started(inner.open_notebook("e.ipynb", "pytorch-2gpus"))
        assert inner.visible(kernel) == "0,1"
        # A nested kernel that outlives everything above it keeps its devices.
        inner.run(kernel, PRETEND_THE_SERVER_LIVES.format(server=os.getpid()))
        pid = inner.kernel_process(kernel)
        os.killpg(inner.process.pid, signal.SIGKILL)
        inner.process.wait()
        wait_until(lambda: len(holdings().leases) == 2)
        assert outer.open_notebook("f.ipynb", no_wait).status == 500
        os.kill(pid, signal.SIGKILL)
        started(outer.open_notebook("f.ipynb", "pytorch-2gpus"))


def test_a_notebook_run_by_papermill_in_a_leased_notebook_parts_its_devices(servers):
    server = servers("4xH200")
    kernel = started(server.open_notebook("a.ipynb", "pytorch-2gpus"))
    notebook = {
        "cells": [
            {
                "cell_type": "code", "id": "a", "metadata": {}, "outputs": [],
                "execution_count": None,
                "source": "import os; print('SEES', os.environ['CUDA_VISIBLE_DEVICES'])",
            }
        ],
        "metadata": {"kernelspec": {"name": "pytorch-1gpu", "display_name": "x", "language": "python"}},
        "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip
    (server.root / "inner.ipynb").write_text(json.dumps(notebook))
    printed = server.run(
        kernel,
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'papermill', '--no-progress-bar', "
        "'inner.ipynb', 'out.ipynb'], check=True, capture_output=True)\n"
        "print(open('out.ipynb').read())",
    )
    assert "SEES 0" in printed


def test_two_changes_of_kernel_at_once_never_give_one_device_to_two_kernels(servers):
    server = servers("2xH200")
    session = server.open_notebook("a.ipynb").body
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: change_kernel(server, session["id"]), range(2)))
    wait_until(lambda: len(server.get("kernels").body) <= 2)
    kernels = [kernel["id"] for kernel in server.get("kernels").body]
    others = [kernel for kernel in kernels if kernel != session["kernel"]["id"]]
    # One that is just ending answers nothing any more: what it was started with tells as much.
    seen = [launched_with(server.kernel_process(kernel)) for kernel in others]
    seen = [value for value in seen if value is not None]
    assert seen
    assert len(set(seen)) == len(seen), seen


def launched_with(pid):
    """Return the CUDA_VISIBLE_DEVICES that a process was started with, None where it is gone."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    values = [word.partition(b"=")[2] for word in words if word.startswith(b"CUDA_VISIBLE_DEVICES=")]
    return values[0].decode() if values else None


def test_a_change_of_kernel_during_a_restart_never_gives_one_device_to_two_kernels(servers):
    server = servers("1xH200")
    session = server.open_notebook("a.ipynb").body
    old = session["kernel"]["id"]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        restart = pool.submit(server.request, "POST", f"kernels/{old}/restart")
        change = pool.submit(change_kernel, server, session["id"])
        restart.result()
        change.result()
    # Whatever the two requests came to: no two living kernels have the device.
    wait_until(lambda: len([p for p in server.living_kernels() if leads_session(p)]) <= 1)
    assert len(leased_uuids()) == 1


def test_a_server_that_is_told_to_end_starts_no_kernel_that_waits(servers):
    server = servers("1xH200")
    started(server.open_notebook("a.ipynb"))
    waits = write_spec("waits", wait="60s")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        late = pool.submit(_ignoring_its_end, server, waits)
        wait_until(lambda: holdings().waiters)
        begun = time.monotonic()
        server.process.terminate()
        server.process.wait(timeout=10)
        assert time.monotonic() - begun < 5
        late.result()
    wait_until(lambda: not holdings().leases)


def _ignoring_its_end(server, kernel):
    with contextlib.suppress(OSError):
        server.open_notebook("late.ipynb", kernel)


def test_a_change_to_fewer_devices_keeps_those_that_a_worker_of_the_old_kernel_has(servers):
    server = servers("2xH200")
    session = server.open_notebook("a.ipynb", "pytorch-2gpus").body
    child = int(server.run(session["kernel"]["id"], FORK_A_CHILD))
    changed = change_kernel(server, session["id"])
    assert changed.status == 200, changed.body
    assert len(leased_uuids()) == 2
    draining = [lease for lease in holdings().leases if lease.state == "draining"]
    assert [child in lease.pids for lease in draining] == [True]
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: len(leased_uuids()) == 1, what="the old device to come free")
    assert len(holdings().leases) == 1


def test_a_worker_that_outlived_a_restart_keeps_its_device_at_the_next_change(servers):
    server = servers("2xH200")
    session = server.open_notebook("a.ipynb", "pytorch-2gpus").body
    kernel = session["kernel"]["id"]
    child = int(server.run(kernel, FORK_A_CHILD))
    old = wait_until(lambda: server.kernel_process(kernel))
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: server.kernel_process(kernel) not in (None, old))
    assert server.visible(kernel) == "0,1"
    changed = change_kernel(server, session["id"])
    assert changed.status == 200, changed.body
    assert len(leased_uuids()) == 2
    by_state = {lease.state: lease for lease in holdings().leases}
    assert by_state["draining"].pids == (child,)
    assert by_state["active"].note is None
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: len(leased_uuids()) == 1, what="the device to come free")


@pytest.mark.slow
def test_a_change_of_kernel_that_fails_at_the_end_leaves_the_device_to_one_kernel(servers):
    server = servers("1xH200")
    session = server.open_notebook("a.ipynb").body
    broken = {"kernel": {"name": "pytorch-1gpu"}, "name": ["no database takes a list"]}
    assert server.request("PATCH", f"sessions/{session['id']}", broken).status == 500
    old = session["kernel"]["id"]
    wait_until(lambda: [k["id"] for k in server.get("kernels").body] == [old], seconds=30)
    assert server.logs("the change to it failed")
    (lease,) = holdings().leases
    assert lease.record.owner.kernel_id == old
    assert server.visible(old) == "0"
