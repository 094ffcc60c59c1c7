import os
import signal
import subprocess
import sys

import pytest
from support_cli import command, finish, gpu, start

from jupyter_gpu.cli import SUMMARIES, main


def test_no_command_explains_itself_and_is_wrong_usage(capsys):
    code, out, err = gpu(capsys)
    assert (code, out) == (2, "")
    assert all(name in err for name in SUMMARIES)


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_lists_every_command_with_an_example(capsys, word):
    code, out, err = gpu(capsys, word)
    assert (code, err) == (0, "")
    assert all(name in out for name in SUMMARIES)
    assert "Example:" in out


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_command_teaches_with_an_example_and_has_json(capsys, name):
    code, out, err = gpu(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert f"usage: jupyter gpu {name}" in out
    assert "Example:" in out
    assert "--json" in out


@pytest.mark.parametrize("name", ["", *SUMMARIES])
def test_no_help_is_wider_than_a_terminal(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "200")
    out = gpu(capsys, *filter(None, [name]), "--help")[1]
    assert [line for line in out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("install", "--jsonn"),
        ("install", "--from", "no-such-kernelspec"),
        ("install", "--devices", "0,0"),
        ("install", "--devices", "12", "--model", "H200"),
        ("install", "--identifiers", "serial-number"),
        ("run", "--gpus", "9", "--", "true"),
        ("remove", "python3"),
        ("map", "0,1,2", "3,4,5"),
        ("a-command-that-is-not-there", *("and", "more") * 20),
        ("setup", "--root", "/dev/null/" + "a-long-folder/" * 6),
    ],
)
def test_no_line_about_a_mistake_is_wider_than_a_terminal(capsys, eight_gpus, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = gpu(capsys, *words)
    assert code
    wide = [line for line in (out + err).splitlines() if len(line) > 80]
    assert all(" " not in line.strip() for line in wide), wide


def test_a_refusal_is_not_wider_than_a_terminal(capsys, eight_gpus, monkeypatch):
    import jupyter_gpu

    with jupyter_gpu.acquire(8):
        code, out, err = gpu(capsys, "run", "--gpus", "9999999", "--", "true")
        assert code == 2
        code, out, err = gpu(capsys, "run", "--gpus", "8", "--", "true")
    assert (code, out) == (75, "")
    assert [line for line in err.splitlines() if len(line) > 80] == []


def test_a_command_that_does_not_exist_gets_the_nearest_name(capsys):
    code, out, err = gpu(capsys, "staus")
    assert (code, out) == (2, "")
    assert "no command 'staus'. Did you mean 'status'?" in err


@pytest.mark.parametrize("name", SUMMARIES)
def test_an_option_that_does_not_exist_is_wrong_usage(capsys, eight_gpus, name):
    code, out, err = gpu(capsys, name, "--jsonn")
    assert (code, out) == (2, "")
    assert "'--jsonn' is not understood. Did you mean '--json'?" in err


def test_the_version_is_the_packages(capsys):
    import jupyter_gpu

    assert gpu(capsys, "--version") == (0, f"{jupyter_gpu.__version__}\n", "")


def test_a_simulation_that_cannot_be_read_is_wrong_usage(capsys, monkeypatch):
    monkeypatch.setenv("JUPYTER_GPU_SIMULATE", "4xNOTHING")
    code, out, err = gpu(capsys, "map")
    assert (code, out) == (2, "")
    assert err.startswith("jupyter gpu: JUPYTER_GPU_SIMULATE=4xNOTHING")


def test_a_reader_that_has_seen_enough_is_no_error(eight_gpus):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command("status"), stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_ctrl_c_while_waiting_is_clean(eight_gpus, capsys):
    import jupyter_gpu

    with jupyter_gpu.acquire("all"):
        with start("run", "--wait", "1h", "--", "true") as waiting:
            wait_until_queued(capsys)
            waiting.send_signal(signal.SIGINT)
            out, err = waiting.communicate(timeout=10)
    assert (waiting.returncode, out, err) == (130, "", "")


def wait_until_queued(capsys):
    from conftest import poll
    from support_cli import gpu_json

    return poll(lambda: gpu_json(capsys, "who")["queue"])


def test_a_terminal_without_our_letters_shows_others(tmp_path):
    machine = tmp_path / "machine.json"
    machine.write_text('{"gpus": [{"name": "NVIDIA L4"}]}')
    environment = {
        **os.environ, "PYTHONIOENCODING": "ascii", "JUPYTER_GPU_SIMULATE": str(machine)
    }
    code, out, err = finish("status", env=environment)
    assert (code, err) == (0, "")
    assert "?" in out


def test_a_share_is_readable_on_such_a_terminal():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "JUPYTER_GPU_SIMULATE": "1xL4"}
    code, out, _ = finish("run", "--gpus", "1/4", "--", sys.executable, "-m", "jupyter_gpu", "who", env=environment)
    assert code == 0
    assert "1/4 GPU" in out


def test_it_is_a_command_of_jupyter_too(eight_gpus):
    folder = os.path.dirname(sys.executable)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        [os.path.join(folder, "jupyter"), "gpu", "map", "--json", "--", "-1"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert '"cuinit": 100' in done.stdout


def test_the_command_imports_nothing_heavy(eight_gpus):
    code = (
        "import sys; from jupyter_gpu.cli import main; main(['status', '--json']); "
        "print([m for m in ('argparse', 'IPython', 'traitlets', 'jupyter_core', 'tornado', "
        "'torch', 'difflib', 'tempfile') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_main_reads_the_command_line_when_given_none(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["jupyter-gpu", "--version"])
    assert main() == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_change_nothing_about_the_status(closed, simulate):
    simulate("2xH200")
    run = f"{sys.executable} -m jupyter_gpu run --gpus 1 -- sh -c 'exit 3' {closed}"
    assert subprocess.run(["sh", "-c", run], check=False).returncode == 3
    status = f"{sys.executable} -m jupyter_gpu status {closed}"
    assert subprocess.run(["sh", "-c", status], check=False).returncode == 0


def test_an_answer_that_cannot_be_written_is_a_sentence(simulate):
    simulate("2xH200")
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m jupyter_gpu status >/dev/full"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "jupyter gpu: the answer could not be written: No space left on device\n"


def test_the_monitor_is_for_notebooks_and_the_command_says_so(capsys):
    assert main(["monitor"]) == 2
    assert "%gpu monitor" in capsys.readouterr().err
