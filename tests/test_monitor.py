import contextlib
import io
import json

import pytest
from support_shell import make_shell

import jupyter_gpu
from jupyter_gpu.faces.extension import OPTIONS


@pytest.fixture
def shell(eight_gpus):
    with make_shell() as shell:
        shell.run_line_magic("load_ext", "jupyter_gpu")
        yield shell


def said(shell, cell):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        shell.run_cell(cell)
    assert "Traceback" not in out.getvalue() + err.getvalue()
    return (out.getvalue() + err.getvalue()).strip()


@pytest.fixture
def threads(eventually):
    import threading

    return lambda: [one for one in threading.enumerate() if one.name.startswith("jupyter-gpu")]


def test_it_is_displayed_where_its_line_stands(shell, threads, eventually):
    text = said(shell, "%gpu monitor --devices 1,cuda:0\nprint('trained')")
    assert "cuda:1 = physical 1" in text
    assert "cuda:2" not in text
    assert text.endswith("trained")
    eventually(lambda: not threads())  # nobody could ever ask it for anything


def test_a_name_keeps_it(shell, eventually):
    said(shell, "%gpu monitor --interval 100ms -o seen")
    seen = shell.user_ns["seen"]
    assert isinstance(seen, jupyter_gpu.Monitor)
    eventually(lambda: seen.history)
    said(shell, "seen.close()")


def test_its_json_opens_nothing(shell, threads):
    answer = shell.run_line_magic("gpu", "monitor --json --devices 3")
    json.dumps(answer)
    assert answer["schema"] == 1
    assert [one["index"] for one in answer["devices"]] == [3]
    assert shell.run_line_magic("gpu", "monitor --json")["devices"][7]["ordinal"] == 7
    assert threads() == []


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--devices 9", "devices: '9' is not a device of this machine: it has physical 0 to 7"),
        ("--devices nine", "devices: 'nine' is not a physical index"),
        ("--interval soon", "interval: 'soon' is not a time from 100ms to 60s"),
        ("--json --interval soon", "interval: 'soon' is not a time from 100ms to 60s"),
        ("-o 2x", "UsageError: -o 2x: this is not the name of a variable."),
        ("-o class", "UsageError: -o class: this is not the name of a variable."),
        ("--intervall 1s", "Did you mean '--interval'?"),
        ("5", "UsageError: '5' is not understood."),
    ],
)
def test_a_mistake_is_one_line(shell, line, complaint):
    text = said(shell, f"%gpu monitor {line}")
    assert complaint in text
    assert "\n" not in text
    assert "seen" not in shell.user_ns


def test_help_teaches_with_examples(shell):
    text = said(shell, "%gpu monitor --help")
    assert "Example:" in text
    assert "--devices cuda:0,5" in text
    assert "seen.frame()" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "%gpu monitor" in said(shell, "%gpu --help")


def test_its_options_are_completed():
    assert set(OPTIONS["monitor"]) == {"--interval", "--devices", "--compact", "-o"}
