"""A kernel left idle over a real Jupyter server: shown as idle, and busy again as soon as it works."""

from __future__ import annotations

import os
import sys
import time

import pytest
from support_cli import gpu, gpu_json
from support_server import Server, wait_until

from jupyter_gpu.adapters.place import find_place
from jupyter_gpu.adapters.store import LeaseStore

# The server itself, in which a kernel counts as idle at once.
IDLE_AT_ONCE = """
import sys
import time
from jupyter_gpu.faces import following
following.IDLE_AFTER_SECONDS, following.LOOK_EVERY_SECONDS = 0, 0
sys.argv = ["jupyter-server", *sys.argv[4:]]
from jupyter_server.serverapp import main
main()
"""
WORK_UNTIL = """
import os, time
print("begun", flush=True)
while not os.path.exists({path!r}):
    time.sleep(0.01)
"""


@pytest.fixture
def server(lease_directory, simulate):
    simulate("2xH200")
    command = [sys.executable, "-c", IDLE_AT_ONCE]
    with Server(lease_directory.parent, command=command) as server:
        yield server


def lease():
    with LeaseStore(find_place(os.environ, simulated=True)) as store:
        (found,) = store.holdings().leases
    return found


def test_a_kernel_that_is_left_is_idle_and_one_that_works_is_not(server, capsys, tmp_path):
    answer = server.open_notebook("exp7.ipynb")
    assert answer.status == 201, answer.body
    kernel = answer.body["kernel"]["id"]
    server.run(kernel, "pass")
    left = wait_until(lambda: lease().state == "idle" and lease(), what="the kernel to be idle")
    said = gpu(capsys, "who")[1]
    assert "exp7.ipynb" in said
    assert "idle 1 min" in said
    (row,) = gpu_json(capsys, "who")["leases"]
    assert (row["state"], row["idle_since"]) == ("idle", left.record.owner.idle_since)

    end = tmp_path / "end"
    with server.client(kernel) as client:
        client.execute(WORK_UNTIL.format(path=str(end)))
        wait_until(lambda: lease().state == "active", what="the kernel to work")
        assert "idle" not in gpu(capsys, "who")[1]
        end.touch()
        again = wait_until(lambda: lease().state == "idle" and lease(), what="it to be idle again")
    assert again.record.owner.idle_since >= left.record.owner.idle_since


def test_a_cell_that_runs_is_no_idle_kernel_though_the_server_calls_it_idle(server, tmp_path):
    """A widget's message is answered by a subshell meanwhile, as JupyterLab sends it."""
    if not supports_subshells():
        pytest.skip("this ipykernel has no subshells")
    kernel = server.open_notebook("exp7.ipynb").body["kernel"]["id"]
    server.run(kernel, "pass")
    wait_until(lambda: lease().state == "idle", what="the kernel to be idle")
    end = tmp_path / "end"
    with server.client(kernel) as client:
        subshell = new_subshell(client)
        client.execute(WORK_UNTIL.format(path=str(end)))
        wait_until(lambda: lease().state == "active", what="the kernel to work")
        state = lambda: server.get(f"kernels/{kernel}").body["execution_state"]  # noqa: E731
        wait_until(lambda: state() == "busy", what="the server to hear of it")
        message = client.session.msg("comm_msg", {"comm_id": "none", "data": {}})
        message["header"]["subshell_id"] = subshell
        client.shell_channel.send(message)
        wait_until(lambda: state() == "idle", what="the subshell to answer")
        begun = time.monotonic()
        while time.monotonic() < begun + 2.5:
            assert lease().state == "active"
        end.touch()
        wait_until(lambda: lease().state == "idle", what="it to be idle again")


def supports_subshells():
    import ipykernel

    return ipykernel.version_info[0] >= 7


def new_subshell(client):
    client.control_channel.send(client.session.msg("create_subshell_request"))
    return client.get_control_msg(timeout=30)["content"]["subshell_id"]
