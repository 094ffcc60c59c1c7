import json
import os
import subprocess
import sys

import pytest

from jupyter_gpu.environments import ask, examine_environments, interpreter_of_script, on_the_path


@pytest.fixture(scope="session")
def bare_environment(tmp_path_factory):
    """A Python environment that has nothing: a server's that lacks the package."""
    folder = tmp_path_factory.mktemp("server")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


def script(folder, name, python, body="pass"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{python}\n{body}\n")
    path.chmod(0o755)
    return path


def found_in(path):
    return examine_environments({"PATH": str(path), "JUPYTER_RUNTIME_DIR": str(path / "none")})


def test_an_environment_that_lacks_the_package_is_named_with_what_mends_it(bare_environment):
    python = bare_environment / "bin" / "python"
    script(bare_environment / "bin", "jupyter-lab", python)
    (check,) = found_in(bare_environment / "bin")
    assert check.status == "fail"
    assert check.name == "environment of jupyter-lab"
    assert f"{python} lacks jupyter-gpu" in check.found
    assert check.fix == f"{python} -m pip install jupyter-gpu"


def test_an_environment_that_has_it_is_in_order(tmp_path):
    script(tmp_path, "jupyter-lab", sys.executable)
    script(tmp_path, "jupyter-server", sys.executable)
    (check,) = found_in(tmp_path)
    assert (check.status, check.fix) == ("ok", None)
    assert check.name == "environment of jupyter-lab, jupyter-server"


def test_without_any_server_there_is_nothing_to_lack(tmp_path):
    (check,) = found_in(tmp_path)
    assert (check.name, check.status) == ("servers", "ok")


def test_a_bare_jupyter_command_starts_no_kernels(tmp_path, bare_environment):
    script(tmp_path, "jupyter", bare_environment / "bin" / "python")
    (check,) = found_in(tmp_path)
    assert check.name == "servers"


def test_a_python_that_is_gone_or_broken_is_said(tmp_path):
    script(tmp_path, "jupyter-lab", "/no/such/python3")
    script(tmp_path, "jupyter-server", tmp_path / "python")
    script(tmp_path, "python", "/bin/sh", "echo broken >&2; exit 3")
    gone, broken = found_in(tmp_path)
    assert (gone.status, broken.status) == ("fail", "fail")
    assert "does not run" in gone.found
    assert "broken" in broken.found


def test_a_program_whose_python_cannot_be_told_is_a_warning(tmp_path):
    (tmp_path / "jupyter-lab").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "jupyter-lab").chmod(0o755)
    (check,) = found_in(tmp_path)
    assert check.status == "warn"
    assert check.fix


@pytest.mark.parametrize(
    ("first", "second", "python"),
    [
        ("#!/opt/x/bin/python3.11", "", "/opt/x/bin/python3.11"),
        ("#!/opt/x/bin/python -E", "", "/opt/x/bin/python"),
        ("#!/bin/sh", '\'\'\'exec\' "/opt/a b/bin/python" "$0" "$@"', "/opt/a b/bin/python"),
        ("#!/bin/sh", "'''exec' /opt/long/bin/python3 \"$0\" \"$@\"", "/opt/long/bin/python3"),
        ("#!/bin/sh", "echo", None),
        ("#!/usr/bin/env no-such-python", "", None),
        ("#!", "", None),
        ("#!/opt/x'", "", None),
        ("import x", "", None),
    ],
)
def test_a_script_names_its_python_in_its_first_lines(tmp_path, first, second, python):
    path = tmp_path / "jupyter-lab"
    path.write_text(f"{first}\n{second}\n")
    assert interpreter_of_script(path, {"PATH": ""}) == python


def test_env_finds_python_on_the_path(tmp_path):
    python = script(tmp_path, "python3", "/bin/sh")
    path = script(tmp_path, "jupyter-lab", "/usr/bin/env -S python3 -u")
    assert interpreter_of_script(path, {"PATH": str(tmp_path)}) == str(python)
    assert interpreter_of_script(tmp_path / "missing", {}) is None


def test_only_what_the_path_finds_first_counts(tmp_path):
    script(tmp_path / "a", "jupyter-lab", "/a/python")
    script(tmp_path / "b", "jupyter-lab", "/b/python")
    found = on_the_path({"PATH": f"{tmp_path / 'a'}:{tmp_path / 'b'}"})
    assert [server.python for server in found] == ["/a/python"]


def test_a_running_server_is_found_by_the_file_it_leaves(tmp_path, bare_environment):
    python = str(bare_environment / "bin" / "python")
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    code = "import sys; print('ready', flush=True); sys.stdin.read()  # jupyter-lab"
    with subprocess.Popen(
        [python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout.readline() == "ready\n"
        (runtime / f"jpserver-{server.pid}.json").write_text(json.dumps({"pid": server.pid}))
        (runtime / "jpserver-1.json").write_text("{ torn")
        (runtime / "jpserver-2.json").write_text(json.dumps({"pid": 2**22 - 1}))
        (runtime / "jpserver-3.json").write_text(json.dumps({"pid": os.getppid()}))
        checks = examine_environments({"PATH": "", "JUPYTER_RUNTIME_DIR": str(runtime)})
        server.communicate("")
    named = [check for check in checks if str(server.pid) in check.name]
    assert [check.status for check in named] == ["fail"]
    assert f"{python} lacks jupyter-gpu" in named[0].found


def test_what_a_python_prints_beside_its_answer_does_not_matter():
    assert ask(sys.executable, "print('hello'); print('{\"a\": 1}')") == ({"a": 1}, "")
    assert ask(sys.executable, "print('hello')")[0] is None
    assert ask(sys.executable, "raise SystemExit('no')") == (None, "no")
    assert ask(sys.executable, "import os; os._exit(4)") == (None, "it ended with status 4")
