"""The server's extension over a real server: its answers, and the kernels that it ends."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support_server import TOKEN, Server, wait_until
from traitlets import TraitError
from traitlets.config import Config

import jupyter_gpu
from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.faces.following import USES
from jupyter_gpu.server import JupyterGPU, _jupyter_server_extension_points, answered

ENABLED = "--ServerApp.jpserver_extensions={'jupyter_gpu.server': True}"
# The server itself, in which a kernel counts as idle at once.
IDLE_AT_ONCE = """
import sys
from jupyter_gpu.faces import following
following.IDLE_AFTER_SECONDS, following.LOOK_EVERY_SECONDS = 0, 0
following.EVERY_SECONDS = 0.05
sys.argv = ["jupyter-server", *sys.argv[4:]]
from jupyter_server.serverapp import main
main()
"""


@pytest.fixture(autouse=True)
def _no_rules(lease_directory, monkeypatch):
    """This computer may have a file of rules."""
    path = lease_directory.parent / "rules.toml"
    path.write_text("", encoding="utf-8")
    monkeypatch.setenv("JUPYTER_GPU_CONFIG", str(path))


@pytest.fixture
def serve(lease_directory):
    """A function that starts a server with the extension; all end with the test."""
    running = []

    def start(*arguments, **environ):
        server = Server(
            lease_directory.parent,
            name=f"server{len(running)}",
            command=[sys.executable, "-c", IDLE_AT_ONCE],
            arguments=(ENABLED, *arguments),
            **environ,
        )
        server.__enter__()
        running.append(server)
        return server

    yield start
    for server in running:
        server.__exit__()


def ask(server, path, *, method="GET", token=TOKEN):
    """The status and the body of an answer of the extension, whatever it is."""
    headers = {} if token is None else {"Authorization": f"token {token}"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/jupyter-gpu/api/{path}",
        method=method,
        headers=headers,
        data=b"{}" if method in ("POST", "PUT", "PATCH") else None,
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def leases():
    with LeaseStore(find_place(os.environ, simulated=True)) as store:
        return store.holdings().leases


def opened(server, path, kernel="pytorch-1gpu"):
    answer = server.open_notebook(path, kernel)
    assert answer.status == 201, answer.body
    return answer.body["kernel"]["id"]


def kernels_of(server):
    return {kernel["id"] for kernel in server.get("kernels").body}


def test_a_server_answers_who_may_ask_and_only_reads(serve, simulate):
    simulate("2xH200")
    server = serve()
    with jupyter_gpu.acquire(1) as lease:
        code, status = ask(server, "status")
        assert (code, status["schema"], len(status["devices"])) == (200, 1, 2)
        assert [one["id"] for one in status["devices"][0]["leases"]] == [lease.id]
        code, answer = ask(server, "leases")
        assert (code, answer["schema"]) == (200, 1)
        assert [one["id"] for one in answer["leases"]] == [lease.id]
        code, answer = ask(server, "queue")
        assert (code, answer["queue"], answer["schema"]) == (200, [], 1)
        for what in ("status", "leases", "queue"):
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                code, body = ask(server, what, method=method)
                assert code == 405, (what, method)
                assert "Traceback" not in body
            for token in (None, "wrong"):
                code, body = ask(server, what, token=token)
                assert code == 403
                assert lease.id not in body
        assert ask(server, "nothing")[0] == 404
        assert ask(server, "")[0] == 404
        assert not lease.released


def test_who_waits_is_told_in_order(serve, simulate, program):
    simulate("1xH200")
    server = serve()
    with jupyter_gpu.acquire(1):
        program("import jupyter_gpu; jupyter_gpu.acquire(1, wait=60)")
        (row,) = wait_until(lambda: ask(server, "queue")[1]["queue"], what="the waiter")
    assert (row["position"], row["request"]["gpus"]) == (1, 1)


def test_what_cannot_be_read_is_a_sentence_and_no_traceback(serve, simulate, lease_directory):
    simulate("2xH200")
    server = serve()
    lease_directory.mkdir(exist_ok=True)
    (lease_directory / "lock").mkdir()
    for what in ("leases", "queue"):
        code, body = ask(server, what)
        assert code == 503
        assert json.loads(body)["schema"] == 1
        assert str(lease_directory) in json.loads(body)["message"]
        assert "Traceback" not in body
    code, status = ask(server, "status")
    assert (code, len(status["devices"])) == (200, 2)
    assert str(lease_directory) in status["leasing"]["problem"]
    (lease_directory / "lock").rmdir()
    assert ask(server, "leases")[0] == 200


def raises(error):
    def read():
        raise error

    return read


@pytest.mark.parametrize(
    ("error", "status", "message", "logged"),
    [
        (ValueError("secret"), 500, "This could not be read. The server's log says more.", True),
        (StoreError("The place is gone."), 503, "The place is gone.", False),
    ],
)
async def test_a_failure_is_in_the_log_and_only_its_sentence_in_the_answer(
    caplog, error, status, message, logged
):
    answer = await answered("leases", raises(error), logging.getLogger("test"))
    assert answer == (status, {"schema": 1, "message": message})
    assert ("secret" in caplog.text) == logged


def test_a_kernel_that_was_left_is_ended_and_one_that_works_is_not(serve, simulate, tmp_path):
    simulate("4xH200")
    server = serve("--JupyterGPU.idle_shutdown=5s", "--JupyterGPU.check_every=0.05")
    works, without = opened(server, "works.ipynb"), opened(server, "a.ipynb", "pytorch-cpu")
    end = tmp_path / "end"
    cell = f"import os, time\nwhile not os.path.exists({str(end)!r}): time.sleep(0.01)"
    server.run(without, "1 + 1")
    with server.client(works) as client:
        client.execute(cell)
        left = opened(server, "left.ipynb")
        server.run(left, "1 + 1")
        wait_until(lambda: left not in kernels_of(server), seconds=60, what="the idle one to end")
        assert kernels_of(server) == {works, without}
        assert held_by_kernels() == {works}
        assert server.logs(f"kernel {left} ends and gives back physical 1: idle since")
        assert server.logs("idle_shutdown is 5 s")
        paths = {one["path"] for one in server.get("sessions").body}
        assert paths == {"works.ipynb", "a.ipynb"}
        end.touch()
        wait_until(lambda: works not in kernels_of(server), seconds=60, what="it to end too")
    assert kernels_of(server) == {without}, "it holds no GPU"


def test_a_kernel_whose_gpus_work_or_cannot_be_read_lives_on(serve, simulate):
    gpus = [{"name": "NVIDIA H200", "utilization_percent": load} for load in (50, None)]
    del gpus[1]["utilization_percent"]
    simulate({"gpus": gpus})
    server = serve("--JupyterGPU.idle_shutdown=1s", "--JupyterGPU.check_every=0.05")
    trains, unknown = opened(server, "trains.ipynb"), opened(server, "unknown.ipynb")
    server.run(trains, "1 + 1")
    server.run(unknown, "1 + 1")
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() > begun + 2.5, what="more than the time to pass")
    assert kernels_of(server) == {trains, unknown}
    gpus[0]["utilization_percent"] = 0
    simulate({"gpus": gpus})
    wait_until(lambda: trains not in kernels_of(server), seconds=30, what="it to end")
    assert kernels_of(server) == {unknown}
    assert held_by_kernels() == {unknown}


def held_by_kernels():
    return {one.record.owner.kernel_id for one in leases() if one.state != "draining"}


class Kernels:
    """The server's manager of kernels, as far as the extension uses it."""

    def __init__(self, **kernels):
        self.kernels, self.ended, self.failing = kernels, [], ()

    def __contains__(self, kernel_id):
        return kernel_id in self.kernels

    def list_kernel_ids(self):
        return list(self.kernels)

    def get_kernel(self, kernel_id):
        return self.kernels[kernel_id]

    async def shutdown_kernel(self, kernel_id):
        if kernel_id in self.failing:
            raise RuntimeError("it does not want to")
        self.ended.append(kernel_id)


class Use:
    """What is known of a kernel's use: since when it is idle."""

    def __init__(self, seconds):
        self.since = None
        if seconds is not None:
            since = datetime.now(timezone.utc) - timedelta(seconds=seconds)
            self.since = since.isoformat(timespec="seconds")

    def idle_since(self, provisioner):
        return self.since


def kernel(lease, *, idle_for=9999):
    made = types.SimpleNamespace(provisioner=types.SimpleNamespace(lease=lease))
    made.use = Use(idle_for)
    return made


@pytest.fixture
def lease(eight_gpus):
    with jupyter_gpu.acquire(1) as held:
        yield held


def extension(kernels, **options):
    made = JupyterGPU(config=Config({"JupyterGPU": options}))
    handlers = []
    uses = {name: one.use for name, one in kernels.kernels.items() if hasattr(one, "use")}
    web_app = types.SimpleNamespace(
        settings={"base_url": "/lab/", USES: uses},
        add_handlers=lambda _, rows: handlers.extend(rows),
    )
    made.begin(types.SimpleNamespace(web_app=web_app, kernel_manager=kernels))
    assert [path for path, _ in handlers] == ["/lab/jupyter-gpu/api/(status|leases|queue)"]
    return made


@pytest.mark.parametrize(
    ("seconds", "options", "ended"),
    [
        (3601, {"idle_shutdown": "1h"}, ["k"]),
        (3500, {"idle_shutdown": "1h"}, []),
        (None, {"idle_shutdown": "1h"}, []),
        (3601, {"idle_warning": "1h"}, []),
        (3601, {"idle_shutdown": "none"}, []),
        (3601, {}, []),
    ],
)
async def test_only_a_kernel_that_is_idle_for_long_enough_is_ended(lease, seconds, options, ended):
    kernels = Kernels(k=kernel(lease, idle_for=seconds))
    await extension(kernels, **options).end_idle_kernels()
    assert kernels.ended == ended


async def test_what_an_old_record_says_ends_no_kernel(lease):
    since = (datetime.now(timezone.utc) - timedelta(hours=9)).isoformat()
    lease.describe(lambda owner: dataclasses.replace(owner, idle_since=since))
    kernels = Kernels(k=kernel(lease, idle_for=None))
    await extension(kernels, idle_shutdown="1h").end_idle_kernels()
    assert kernels.ended == []


async def test_kernels_that_are_not_ours_or_hold_nothing_are_left_alone(eight_gpus):
    other = types.SimpleNamespace()
    released = jupyter_gpu.acquire(1)
    released.release()
    kernels = Kernels(a=other, b=kernel(released), c=kernel(None), d=kernel(jupyter_gpu.acquire(0)))
    await extension(kernels, idle_shutdown="1s").end_idle_kernels()
    assert kernels.ended == []


async def test_one_that_cannot_be_ended_or_has_just_gone_does_not_keep_the_others(lease, caplog):
    with jupyter_gpu.acquire(1) as another:
        kernels = Kernels(bad=kernel(lease), gone=kernel(lease), good=kernel(another))
        kernels.failing = ("bad",)
        ours = extension(kernels, idle_shutdown="1m")
        listed = kernels.list_kernel_ids()
        del kernels.kernels["gone"]
        kernels.list_kernel_ids = lambda: listed
        await ours.end_idle_kernels()
    assert kernels.ended == ["good"]
    assert "kernel bad could not be ended" in caplog.text
    assert "gone" not in caplog.text


async def test_the_sites_time_counts_where_it_is_shorter_and_may_change(
    lease, tmp_path, monkeypatch, caplog
):
    path = tmp_path / "rules.toml"
    monkeypatch.setenv("JUPYTER_GPU_CONFIG", str(path))
    kernels = Kernels(k=kernel(lease, idle_for=3000))
    ours = extension(kernels, idle_shutdown="1h")
    path.write_text('idle_shutdown = "2h"')
    await ours.end_idle_kernels()
    assert kernels.ended == []
    path.write_text("idle_shutdown = 0")
    for _ in range(3):
        await ours.end_idle_kernels()
    assert kernels.ended == []
    assert caplog.text.count("no time of the site's rules counts") == 1
    path.write_text('idle_shutdown = "30m"')
    await ours.end_idle_kernels()
    assert kernels.ended == ["k"]


def test_its_options_are_times_as_people_write_them():
    assert JupyterGPU().idle_warning is None
    assert JupyterGPU().idle_shutdown is None
    assert JupyterGPU().check_every == 30
    given = JupyterGPU(config=Config({"JupyterGPU": {"idle_warning": "2h", "idle_shutdown": 90}}))
    assert (given.idle_warning, given.idle_shutdown) == (7200, 90)
    assert all(
        JupyterGPU.class_traits(config=True)[name].help
        for name in ("idle_warning", "idle_shutdown")
    )


@pytest.mark.parametrize("wrong", ["soon", 0, "-1h", True, ["1h"]])
def test_what_is_no_time_is_refused_with_what_is(wrong):
    with pytest.raises(TraitError, match='"30m" or "8h", or "none"'):
        JupyterGPU(config=Config({"JupyterGPU": {"idle_shutdown": wrong}}))


def test_a_server_with_a_wrong_time_serves_and_says_so(serve, simulate):
    simulate("2xH200")
    server = serve("--JupyterGPU.idle_shutdown=soon")
    assert server.get("status").status == 200
    assert server.logs("idle_shutdown")
    assert ask(server, "leases")[0] == 404


def test_it_names_itself_as_an_extension():
    assert _jupyter_server_extension_points() == [{"module": "jupyter_gpu.server"}]
    file = Path(__file__).parent.parent / "server-config" / "jupyter-gpu.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    assert settings == {"ServerApp": {"jpserver_extensions": {"jupyter_gpu.server": True}}}


def test_a_kernel_or_a_command_loads_nothing_of_it():
    code = (
        "import sys, jupyter_gpu.provisioner, jupyter_gpu.faces.following, jupyter_gpu.idle\n"
        "import jupyter_gpu.faces.idle_notice, jupyter_gpu.cli\n"
        "print([n for n in sys.modules if n.startswith('jupyter_server') or n == 'jupyter_gpu.server'])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"
