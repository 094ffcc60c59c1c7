import json
import os
import pty
import signal
import sys

import pytest
from support_cli import command, environment, finish, gpu, gpu_json, start

import jupyter_gpu

SHOW = (
    "import json, os; print(json.dumps([os.environ.get('CUDA_VISIBLE_DEVICES'), "
    "os.environ.get('JUPYTER_GPU_LEASE'), os.environ.get('CUDA_DEVICE_ORDER')]))"
)
# Says that it is ready, then stays until its input ends.
STAY = "import sys; print('ready', flush=True); sys.stdin.read()"
PIPES = {"stdin": -1}


def python(code):
    return ("--", sys.executable, "-c", code)


def leases(capsys):
    return gpu_json(capsys, "who")["leases"]


def test_the_command_sees_the_leased_devices_and_nothing_else_is_printed(eight_gpus, capsys):
    code, out, err = finish("run", "--gpus", "2", *python(SHOW))
    assert (code, err) == (0, "")
    visible, lease, order = json.loads(out)
    assert (visible, order) == ("0,1", "PCI_BUS_ID")
    assert lease
    assert leases(capsys) == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -9 $$"), 137),
        (("no-such-command",), 127),
        (("/no/such/command",), 127),
        (("/etc/passwd",), 126),
    ],
)
def test_its_exit_status_is_the_commands(eight_gpus, words, code):
    ended, out, err = finish("run", "--", *words)
    assert (ended, out) == (code, "")
    assert bool(err) == (code in (126, 127))


def test_who_names_the_command_and_both_processes(eight_gpus, capsys):
    with start("run", *python(STAY), **PIPES) as running:
        assert running.stdout.readline() == "ready\n"
        (lease,) = poll(lambda: [row for row in leases(capsys) if len(row["pids"]) == 2])
        assert lease["kind"] == "command"
        assert lease["command"].startswith(f"{sys.executable} -c")
        assert lease["pids"][0] == running.pid
        running.communicate("")
    assert (running.returncode, leases(capsys)) == (0, [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_passed_on_and_the_lease_ends_with_the_command(eight_gpus, capsys, number):
    default = f"import signal; signal.signal({int(number)}, signal.SIG_DFL); {STAY}"
    with start("run", *python(default), **PIPES) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(number)
        assert running.wait(timeout=10) == 128 + number
        assert running.stderr.read() == ""
    assert leases(capsys) == []


def test_a_command_that_handles_a_signal_decides_for_itself(eight_gpus):
    handles = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); "
        "print('ready', flush=True); signal.pause()"
    )
    with start("run", *python(handles)) as running:
        assert running.stdout.readline() == "ready\n"
        running.terminate()
        assert running.wait(timeout=10) == 5


def test_when_run_itself_is_killed_the_command_keeps_the_lease(eight_gpus, capsys):
    with start(
        "run", "--gpus", "3", *python(f"import os; print(os.getpid()); {STAY}"), **PIPES
    ) as run:
        child = int(run.stdout.readline())
        assert run.stdout.readline() == "ready\n"
        poll(lambda: [row for row in leases(capsys) if len(row["pids"]) == 2])
        run.kill()
        run.wait(timeout=10)
        (lease,) = leases(capsys)
        assert (lease["pids"], lease["indices"], lease["state"]) == ([child], [0, 1, 2], "active")
        assert finish("run", "--gpus", "6", "--", "true")[0] == 75
        os.kill(child, signal.SIGKILL)
        poll(lambda: leases(capsys) == [])


def test_a_worker_that_outlives_the_command_keeps_the_lease(eight_gpus, capsys):
    forks = (
        "import os, sys, time\n"
        "pid = os.fork()\n"
        "if pid:\n    print(pid, flush=True); sys.exit(3)\n"
        "time.sleep(60)"
    )
    with start("run", *python(forks)) as running:
        worker = int(running.stdout.readline())
        assert running.wait(timeout=10) == 3
        try:
            (lease,) = leases(capsys)
            assert worker in lease["pids"]
        finally:
            os.kill(worker, signal.SIGKILL)
        poll(lambda: leases(capsys) == [])


def test_a_run_inside_a_run_parts_its_devices(eight_gpus):
    inner = (*command("run", "--gpus", "1"), "--", sys.executable, "-c", SHOW)
    twice = f"import subprocess; [subprocess.run({inner!r}, check=True) for _ in range(2)]"
    code, out, err = finish("run", "--gpus", "2", "--devices", "4,6", *python(twice))
    assert (code, err) == (0, "")
    assert [json.loads(line)[0] for line in out.splitlines()] == ["4", "4"]
    too_many = (*command("run", "--gpus", "3"), "--", "true")
    code, _, err = finish("run", "--gpus", "2", "--", *too_many)
    assert code == 2
    assert "the lease that this program runs under" in " ".join(err.split())


def test_what_cannot_be_had_now_names_the_holders(eight_gpus):
    with jupyter_gpu.acquire("all"):
        code, out, err = finish("run", "--", "true")
    assert (code, out) == (75, "")
    assert "No GPU is free" in err
    assert "0, 1, 2, 3, 4, 5, 6, 7" in err


def test_it_waits_as_long_as_it_is_told_to(eight_gpus, capsys):
    with jupyter_gpu.acquire("all"):
        with start("run", "--wait", "1h", *python(SHOW)) as running:
            poll(lambda: gpu_json(capsys, "who")["queue"])
            assert running.poll() is None
            running.terminate()
            out, err = running.communicate(timeout=10)
    assert (out, err) == ("", "")


def test_a_waiting_run_gets_its_turn(eight_gpus, capsys):
    held = jupyter_gpu.acquire("all")
    with start("run", "--wait", "1h", *python(SHOW)) as running:
        poll(lambda: gpu_json(capsys, "who")["queue"])
        held.release()
        out, err = running.communicate(timeout=10)
    assert (running.returncode, err, json.loads(out)[0]) == (0, "", "0")


def test_a_person_at_a_terminal_sees_that_it_waits(eight_gpus):
    ours, theirs = pty.openpty()
    held = jupyter_gpu.acquire("all")
    with start("run", "--gpus", "2", "--wait", "1h", "--", "true", stderr=theirs) as running:
        os.close(theirs)
        said = b""
        while b"Waiting for 2 GPUs" not in said:
            said += os.read(ours, 999)
        held.release()
        assert running.wait(timeout=10) == 0
        assert os.read(ours, 999).endswith(b"\r\x1b[K")
    os.close(ours)


def test_ctrl_c_at_a_terminal_reaches_the_command_once(eight_gpus):
    counts = (
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "print('ready', flush=True)\n"
        "signal.sigwait([signal.SIGINT])\n"
        "sys.exit(1 if signal.sigtimedwait([signal.SIGINT], 0.3) is None else 2)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        words = command("run", *python(counts))
        os.execv(words[0], words)
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 999)
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "9"), "9 GPUs are asked for, and this machine has 8 GPUs"),
        (("--gpus", "two"), "gpus: 'two' is not a number"),
        (("--gpus", "-1"), "gpus: '-1' is not a number"),
        (("--gpus", "1.5"), "gpus: '1.5' is not"),
        (("--gpus", "5/4"), "gpus: '5/4' is not a share above 0 and at most 1"),
        (("--gpus", "0/4"), "gpus: '0/4' is not a share"),
        (("--gpus", "mig:1g.18gb"), "no GPU here is in MIG mode"),
        (("--devices", "12"), "There is no device 12 here"),
        (("--model", "H9000"), "H9000"),
        (("--topology", "near"), "topology: 'near' is not one of any, prefer, require"),
        (("--wait", "soon"), "wait: 'soon' is not a time"),
        (("--on-unavailable", "cpu"), "'--on-unavailable' is not understood"),
    ],
)
def test_what_can_never_be_had_is_wrong_usage(capsys, eight_gpus, words, said):
    code, out, err = gpu(capsys, "run", *words, "--", "true")
    assert (code, out) == (2, "")
    assert any(part in err for part in said.split("|"))


@pytest.mark.parametrize("words", [(), ("--",), ("true",), ("--gpus", "1")])
def test_without_a_command_it_says_where_that_goes(capsys, eight_gpus, words):
    code, out, err = gpu(capsys, "run", *words)
    assert (code, out) == (2, "")
    assert "after --" in err


def test_json_tells_what_was_leased_beside_the_commands_output(eight_gpus):
    code, out, err = finish("run", "--gpus", "2", "--json", "--", "echo", "hello")
    assert (code, out) == (0, "hello\n")
    assert [device["index"] for device in json.loads(err)["devices"]] == [0, 1]


def test_no_gpu_can_be_asked_for(eight_gpus, capsys):
    code, out, err = finish("run", "--gpus", "0", *python(SHOW))
    assert (code, json.loads(out)[:2], err) == (0, ["-1", None], "")


def test_an_environment_that_is_limited_is_the_pool(eight_gpus):
    limited = environment(CUDA_VISIBLE_DEVICES="6,5")
    code, out, _ = finish("run", *python(SHOW), env=limited)
    assert (code, json.loads(out)[0]) == (0, "5")
    code, _, err = finish("run", "--gpus", "3", "--", "true", env=limited)
    assert code == 2
    assert "CUDA_VISIBLE_DEVICES=6,5" in err


def poll(condition):
    from conftest import poll as look

    return look(condition)
