"""``jupyter gpu mps``, with NVIDIA's program played by the script of test_mps."""

import json
import os

import pytest
from support_cli import gpu
from test_mps import daemon, fake  # noqa: F401 - fixtures

from jupyter_gpu.core.errors import GPUError, UsageError
from jupyter_gpu.faces.commands.mps import MPS

KEYS = {"schema", "daemon", "directory", "pid", "servers", "clients", "log"}


@pytest.fixture
def run(fake, capsys):  # noqa: F811
    """Run the command with the program's folder; returns what it wrote."""

    def run_it(*words, **changes):
        capsys.readouterr()
        assert MPS({**fake.environ, **changes}, fake.home).main(list(words)) == 0
        return capsys.readouterr().out

    return run_it


def test_a_daemon_is_started_shown_and_stopped(run, fake):  # noqa: F811
    assert run("status").startswith("No MPS control daemon runs for you\n")
    started = run("start")
    assert started.startswith("Your MPS control daemon runs now\n")
    assert f"Directory  {fake.pipes}\n" in started
    assert "Kernels that run already are not affected" in " ".join(started.split())
    assert run("start").startswith("Your MPS control daemon runs, as it did\n")
    assert run("status").startswith("An MPS control daemon runs, and no program uses it\n")
    assert run("stop") == "Your MPS control daemon is stopped\n"
    assert run("stop") == "No daemon of yours runs\n"


def test_no_line_is_wider_than_a_terminal(run, fake):  # noqa: F811
    texts = [run("status"), run("start")]
    fake.connect({4711: [os.getpid(), 999_999_999]})
    texts += [run("status")]
    wide = [line for text in texts for line in text.splitlines() if len(line) > 80]
    assert all(" /" in line for line in wide), wide  # only a path may be long


def test_programs_that_use_it_are_listed(run, fake):  # noqa: F811
    run("start")
    fake.connect({4711: [os.getpid()]})
    assert run("status").startswith(
        f"An MPS control daemon runs, and 1 program uses it\n  {os.getpid()}  "
    )
    fake.connect({4711: [os.getpid(), 999_999_999]})
    assert "2 programs use it" in run("status")
    assert "  999999999  –\n" in run("status")


def test_its_json_has_the_fixed_keys(run, fake):  # noqa: F811
    nothing = json.loads(run("status", "--json"))
    assert nothing.keys() >= KEYS
    assert (nothing["daemon"], nothing["pid"], nothing["clients"]) == (False, None, 0)
    started = json.loads(run("start", "--json"))
    assert started["changed"] is True
    fake.connect({4711: [os.getpid()]})
    shown = json.loads(run("status", "--json"))
    assert shown["schema"] == 1
    assert shown["daemon"] is True
    assert shown["directory"] == str(fake.pipes)
    assert shown["log"] == str(fake.home / "log")
    assert shown["pid"] == started["pid"]
    assert (shown["servers"], shown["clients"]) == ([4711], 1)
    assert json.loads(run("status", "--json", PATH="/nowhere"))["clients"] is None
    stopped = json.loads(run("stop", "--force", "--json"))
    assert (stopped["changed"], stopped["daemon"], stopped["pid"]) == (True, False, None)


def test_stop_refuses_while_a_program_uses_it(run, fake):  # noqa: F811
    run("start")
    fake.connect({4711: [os.getpid()]})
    with pytest.raises(GPUError, match=f"1 program uses the daemon(?s:.*){os.getpid()}"):
        run("stop")
    assert run("stop", "--force") == "Your MPS control daemon is stopped\n"


def test_force_goes_with_stop_only(run):
    with pytest.raises(UsageError, match="--force goes with stop, not with start"):
        run("start", "--force")


def test_who_uses_it_is_unknown_without_the_program(run):
    run("start")
    text = " ".join(run("status", PATH="/nowhere").split())
    assert text.startswith("An MPS control daemon runs Process")
    assert "Who uses it is unknown" in text


def test_a_daemon_that_cannot_be_seen_is_not_relied_on(run, fake):  # noqa: F811
    fake.pipes.mkdir(parents=True)
    (fake.pipes / "control").touch()
    text = run("status")
    assert text.startswith("Whether an MPS control daemon runs cannot be seen from here\n")
    assert "Shares do not rely on it" in text
    assert json.loads(run("status", "--json"))["daemon"] is None


def test_roots_own_is_shown_with_what_it_costs(run, fake, daemon, needs_root):  # noqa: F811
    named = fake.folder / "named"
    daemon(named)
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(named)}
    assert "serves one user after the other" in " ".join(run("status", **pipes).split())
    assert run("start", **pipes).startswith(
        "The MPS control daemon that CUDA_MPS_PIPE_DIRECTORY names runs already\n"
    )
    text = run("stop", **pipes)
    assert text.startswith("No daemon of yours runs\n")
    assert f"The one of {named} goes on: root has started it" in " ".join(text.split())


@pytest.mark.parametrize("words", [(), ("begin",), ("start", "now"), ("status", "--", "x")])
def test_other_words_are_wrong_usage(capsys, words):
    code, out, err = gpu(capsys, "mps", *words)
    assert (code, out) == (2, "")
    assert err.startswith("jupyter gpu: ")
    assert [line for line in err.splitlines() if len(line) > 80] == []


def test_the_help_teaches_what_is_limited_and_what_is_not(capsys):
    text = " ".join(gpu(capsys, "mps", "--help")[1].split())
    for part in (
        "limits the memory and the multiprocessors of each process, whatever framework",
        "It limits no bandwidth",
        "It serves your own programs only",
        "a kernel that runs already does not",
    ):
        assert part in text


def test_a_simulated_machine_has_none(capsys, eight_gpus):
    code, out, err = gpu(capsys, "mps", "start")
    assert (code, out) == (1, "")
    assert "simulated: there is no MPS" in err
    assert gpu(capsys, "mps", "status")[1].startswith("No MPS control daemon runs for you\n")
