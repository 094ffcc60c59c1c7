"""Every front end gets its devices: by its real command, on a simulated machine."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from kernels import (
    KERNELSPECS,
    SEE,
    SEE_AND_WAIT,
    START_SECONDS,
    Kernel,
    StartedByArgv,
    free_count,
    leases,
    queue,
    require_leased,
    start_argv,
    wait_for_file,
)
from nbclient import NotebookClient
from support_server import Server

import jupyter_gpu

BIN = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def _four_gpus_and_our_kernelspecs(simulate, lease_directory, monkeypatch):
    """A machine, and a Jupyter that finds the kernelspecs of this tree."""
    simulate("4xH200")
    share = lease_directory.parent / "share"
    shutil.copytree(KERNELSPECS, share / "kernels")
    monkeypatch.setenv("JUPYTER_PATH", str(share))


@pytest.fixture
def folder(tmp_path):
    """Where a notebook leaves what it sees."""
    return tmp_path


def notebook(folder, *, kernel="pytorch-2gpus"):
    """Write a notebook that leaves what it sees in the folder; returns its path."""
    cells = [nbformat.v4.new_code_cell(SEE_AND_WAIT % str(folder))]
    metadata = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    path = folder / "work.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    return path


def command(*words, **options):
    """Start a command of this environment."""
    return subprocess.Popen(
        [str(BIN / words[0]), *map(str, words[1:])],
        stdin=options.pop("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def require_leased_while_it_runs(process, folder):
    """Check the lease of a command's kernel while the cell runs, and that it ends with it."""
    seen = wait_for_file(folder / "seen.json", process)
    require_leased(seen, (0, 1))
    (folder / "end").touch()
    said, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 0, said
    assert leases() == ()
    assert free_count() == 4


async def test_nbclient_runs_a_notebook_on_devices_of_its_own(folder):
    document = nbformat.read(notebook(folder), as_version=4)
    client = NotebookClient(document)
    running = asyncio.ensure_future(client.async_execute())
    seen = await asyncio.to_thread(wait_for_file, folder / "seen.json")
    require_leased(seen, (0, 1))
    (folder / "end").touch()
    await running
    assert leases() == ()
    assert free_count() == 4


def test_papermill_runs_a_notebook_on_devices_of_its_own_by_the_kernelspec_it_is_told(folder):
    source = notebook(folder, kernel="pytorch-cpu")
    words = (folder / "done.ipynb", "--no-progress-bar", "-k", "pytorch-2gpus")
    require_leased_while_it_runs(command("papermill", source, *words), folder)


def test_jupyter_execute_runs_a_notebook_on_devices_of_its_own(folder):
    process = command("jupyter", "execute", notebook(folder))
    require_leased_while_it_runs(process, folder)


def test_jupyter_nbconvert_runs_a_notebook_on_devices_of_its_own(folder):
    words = ("--to", "notebook", "--execute", "--output", "done.ipynb")
    process = command("jupyter", "nbconvert", *words, notebook(folder))
    require_leased_while_it_runs(process, folder)


def test_jupyter_console_runs_on_devices_of_its_own(folder):
    (folder / "cell.py").write_text(SEE_AND_WAIT % str(folder), encoding="utf-8")
    words = ("--simple-prompt", "--kernel", "pytorch-2gpus")
    process = command("jupyter", "console", *words, stdin=subprocess.PIPE)
    process.stdin.write(f"exec(open({str(folder / 'cell.py')!r}).read())\n")
    process.stdin.flush()
    seen = wait_for_file(folder / "seen.json", process)
    require_leased(seen, (0, 1))
    (folder / "end").touch()
    said, _ = process.communicate("exit\n", timeout=START_SECONDS)
    assert process.returncode == 0, said
    assert leases() == ()
    assert free_count() == 4


def test_a_jupyter_server_starts_a_notebooks_kernel_on_devices_of_its_own(folder):
    with Server(folder) as server:
        session = server.open_notebook("work.ipynb", "pytorch-2gpus").body
        kernel_id = session["kernel"]["id"]
        seen = json.loads(server.run(kernel_id, f"{SEE}print(json.dumps(seen))"))
        require_leased(seen, (0, 1))
        (lease,) = leases()
        assert lease.record.owner.kernel_id == kernel_id
        assert lease.record.owner.notebook == str(server.root / "work.ipynb")
        assert server.request("DELETE", f"sessions/{session['id']}").status == 204
        assert leases() == ()
        assert free_count() == 4


@pytest.fixture
def by_argv(folder):
    """Start kernels by the ``argv`` of kernel.json, as VS Code, Zed and emacs-jupyter do."""
    started = []

    def start(*args, **options):
        started.append(StartedByArgv(*start_argv(folder, *args, **options)))
        return started[-1].wait_until_ready()

    yield start
    for kernel in started:
        kernel.close()


@pytest.mark.parametrize("put", ["-f X", "-f=X", "--f=X"])
def test_a_front_end_that_starts_argv_itself_gets_devices(by_argv, put):
    kernel = by_argv("pytorch-2gpus", put=put)
    require_leased(kernel.see(), (0, 1))
    (lease,) = leases()
    assert lease.record.owner.kernel_id == "00000000-0000-4000-8000-000000000000"
    assert kernel.shut_down() == 0
    assert leases() == ()
    assert free_count() == 4


def test_two_kernels_started_by_argv_have_no_device_in_common(by_argv):
    first, second = by_argv("pytorch-2gpus").see(), by_argv("pytorch-2gpus").see()
    visible = [first["CUDA_VISIBLE_DEVICES"], second["CUDA_VISIBLE_DEVICES"]]
    assert visible == ["0,1", "2,3"]
    assert free_count() == 0


def test_the_last_word_on_the_command_line_counts(by_argv):
    kernel = by_argv("pytorch-2gpus", options=("--gpus=1", "--devices", "2,3"))
    require_leased(kernel.see(), (2,))


def test_a_kernel_started_by_argv_when_nothing_is_free_starts_without_and_says_so_once(by_argv):
    with jupyter_gpu.acquire("all"):
        kernel = by_argv(options=("--wait=0",))
        # Code that a front end runs for itself, as VS Code does, does not use the notice up.
        assert kernel.run("print(0)", store_history=False) == ("0\n", "")
        output, notice = kernel.run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
        assert output == "-1\n"
        first, second, holder, *_ = notice.splitlines()
        assert first == "This kernel has no GPU."
        assert second == "No GPU is free (4 on this machine)."
        assert holder.startswith("  0, 1, 2, 3  ")
        assert kernel.run("print(1)") == ("1\n", "")
        assert kernel.run("1 / 1") == ("", "")
        assert kernel.said().count(notice) == 1
        seen = kernel.see()
    assert seen["JUPYTER_GPU_LEASE"] is None
    assert free_count() == 4


def test_on_unavailable_error_ends_the_kernel_with_the_reason(folder):
    with jupyter_gpu.acquire("all"):
        options = ("--wait=0", "--on-unavailable=error")
        process, _, stderr = start_argv(folder, options=options)
        assert process.wait(timeout=START_SECONDS) == 1
    said = stderr.read_text(encoding="utf-8")
    assert said.startswith("No GPU is free (4 on this machine).\n")
    assert said.endswith("The kernel was not started, because on_unavailable is error.\n")


def test_on_unavailable_wait_waits_until_a_device_is_given_back(folder, eventually):
    with jupyter_gpu.acquire("all"):
        options = ("--wait=0", "--on-unavailable=wait")
        process, file, stderr = start_argv(folder, options=options)
        assert len(eventually(queue, within=START_SECONDS)) == 1
        assert process.poll() is None
    kernel = StartedByArgv(process, file, stderr)
    try:
        require_leased(kernel.wait_until_ready().see(), (0,))
    finally:
        kernel.close()


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--on-unavailable=cry", "on_unavailable: 'cry' is not one of cpu, wait, error"),
        ("--gpus=64", "64 GPUs"),
    ],
)
def test_an_option_that_cannot_be_met_starts_the_kernel_without_gpu_and_says_so(
    by_argv, option, sentence
):
    kernel = by_argv(options=(option,))
    assert sentence in kernel.said()
    output, notice = kernel.run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    assert output == "-1\n"
    assert notice.startswith("This kernel has no GPU.\n")
    assert sentence in notice
    assert leases() == ()


def test_a_killed_kernel_started_by_argv_frees_its_device_at_once(by_argv):
    kernel = by_argv()
    require_leased(kernel.see(), (0,))
    os.kill(kernel.process.pid, signal.SIGKILL)
    kernel.process.wait(timeout=START_SECONDS)
    assert free_count() == 4


def test_a_forked_worker_that_outlives_the_killed_kernel_keeps_its_device(by_argv, eventually):
    kernel = by_argv()
    output, _ = kernel.run(
        "import os, signal\n"
        "worker = os.fork()\n"
        "while worker == 0:\n"
        "    signal.pause()\n"
        "print(worker)"
    )
    worker = int(output)
    try:
        os.kill(kernel.process.pid, signal.SIGKILL)
        kernel.process.wait(timeout=START_SECONDS)
        assert free_count() == 3
        (lease,) = leases()
        assert (lease.state, lease.pids) == ("draining", (worker,))
    finally:
        os.kill(worker, signal.SIGKILL)
    eventually(lambda: free_count() == 4)


def test_programs_that_a_kernel_starts_do_not_keep_its_device(by_argv):
    kernel = by_argv()
    output, _ = kernel.run(
        "import os, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '60'], close_fds=False, start_new_session=True)\n"
        "print(child.pid)"
    )
    try:
        assert kernel.shut_down() == 0
        assert free_count() == 4
    finally:
        os.kill(int(output), signal.SIGKILL)


def test_a_kernel_killed_under_nbclient_frees_its_device_at_once(folder, eventually):
    client = NotebookClient(nbformat.read(notebook(folder), as_version=4))
    client.create_kernel_manager()
    client.start_new_kernel()
    kernel = Kernel(client.km.connection_file)
    try:
        seen = kernel.wait_until_ready().see()
        require_leased(seen, (0, 1))
        os.kill(seen["pid"], signal.SIGKILL)
        # Nobody has told nbclient yet: it has not asked about its kernel since.
        eventually(lambda: free_count() == 4, within=1.0)
    finally:
        kernel.close()
        client._cleanup_kernel()


def test_jupyter_run_ends_without_a_complaint(folder):
    (folder / "two.py").write_text("print(1 + 1)\n", encoding="utf-8")
    process = command("jupyter", "run", "--kernel", "pytorch-1gpu", folder / "two.py")
    said, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 0, said
    assert "2" in said.splitlines()
    assert "Traceback" not in said
    assert free_count() == 4


def test_a_refusal_is_the_last_word_of_jupyter_execute(folder):
    with jupyter_gpu.acquire("all"):
        process = command("jupyter", "execute", notebook(folder, kernel="pytorch-1gpu"))
        said, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode != 0
    assert said.rstrip().endswith("jupyter gpu install --gpus 1 --wait 30m --name wait-1")
    assert "atexit" not in said
