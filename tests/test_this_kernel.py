"""What a process knows of the kernel that it is; the rest is shown over real kernels."""

import os
from types import SimpleNamespace

import pytest
from support_shell import make_shell

from jupyter_gpu.adapters import launch
from jupyter_gpu.faces import this_kernel


@pytest.fixture
def shell():
    with make_shell() as shell:
        yield shell


def test_a_shell_that_is_no_kernel_has_no_connection_file(shell):
    assert this_kernel.connection_file(shell) is None
    assert not this_kernel.is_wrapper()


@pytest.mark.parametrize(
    ("told", "starter", "restarts"),
    [
        ({}, None, False),
        ({"JUPYTER_GPU_STARTER": ""}, None, False),
        ({"JUPYTER_GPU_STARTER": "1 restarts"}, None, False),
        ({"JUPYTER_GPU_STARTER": f"{os.getppid()}"}, "", False),
        ({"JUPYTER_GPU_STARTER": f"{os.getppid()} restarts"}, "restarts", True),
        ({"JUPYTER_GPU_STARTER": f"{os.getpid()} restarts"}, None, False),
    ],
)
def test_only_the_program_that_started_this_process_counts(told, starter, restarts):
    assert launch.starter(told) == starter
    assert launch.restarts_by_itself(told) == restarts


def test_the_owner_is_this_process_and_its_notebook(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    owner = this_kernel.owner(shell, {"JPY_SESSION_NAME": "work/a.ipynb"})
    assert (owner.kind, owner.notebook) == ("kernel", None)
    assert owner.command == f"a kernel in {tmp_path}"
    assert [process.pid for process in owner.processes] == [os.getpid()]
    (tmp_path / "a.ipynb").touch()
    for told in ("work/a.ipynb", str(tmp_path / "a.ipynb")):
        owner = this_kernel.owner(shell, {"JPY_SESSION_NAME": told})
        assert owner.notebook == str(tmp_path / "a.ipynb")
    shell.user_ns["__vsc_ipynb_file__"] = str(tmp_path / "a.ipynb")
    assert this_kernel.owner(shell, {}).notebook == str(tmp_path / "a.ipynb")


def test_ending_stops_the_loop_and_waits_for_nobody(monkeypatch):
    started = []
    monkeypatch.setattr(this_kernel.threading.Timer, "start", lambda one: started.append(one))  # noqa: PLW0108
    shell = SimpleNamespace(exit_now=False)
    this_kernel.end_for_restart(shell)
    assert shell.exit_now
    (timer,) = started
    assert timer.daemon
