import contextlib
import io
import json
import os

import pytest
from support_shell import make_shell

import jupyter_gpu
from jupyter_gpu.faces.extension import HELP, SUBCOMMANDS


@pytest.fixture
def shell(eight_gpus):
    with make_shell() as shell:
        shell.run_line_magic("load_ext", "jupyter_gpu")
        yield shell


def shown(shell, line):
    return shell.run_line_magic("gpu", line)


def complaint(shell, cell):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        shell.run_cell(cell)
    assert "Traceback" not in out.getvalue() + err.getvalue()
    return (out.getvalue() + err.getvalue()).strip()


def test_it_shows_one_view_as_text_and_as_html(shell):
    bundle = shown(shell, "")._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "8 GPUs are visible" in bundle["text/plain"]
    assert "8 GPUs are visible" in bundle["text/html"]
    assert "simulated" in bundle["text/plain"]
    assert repr(shown(shell, "status")) == bundle["text/plain"]


def test_a_kernel_under_a_lease_sees_it(shell, monkeypatch):
    with jupyter_gpu.acquire(2) as held:
        for name, value in held.environment.items():
            monkeypatch.setenv(name, value)
        text = repr(shown(shell, ""))
        answer = shown(shell, "--json")
    assert text.startswith("2 of 8 GPUs are yours")
    assert answer["lease"]["uuids"] == [device.uuid for device in held.devices]
    assert answer["process"]["set_now"] == "0,1"
    assert answer["process"]["launched_with"] is None
    assert answer["process"]["in_force"] is None
    assert answer["process"]["state"] == "simulated"
    assert "cannot be found" in repr(shown(shell, ""))


def test_json_is_a_dictionary_that_json_can_write(shell):
    for line in ("--json", "status --json", "who --json", "map --json 1,0", "map 1,0 --json"):
        answer = shown(shell, line)
        assert answer["schema"] == 1
        json.dumps(answer)


def test_who_lists_every_lease(shell):
    with jupyter_gpu.acquire(3):
        assert "1 lease on this machine" in repr(shown(shell, "who"))
        (held,) = shown(shell, "who --json")["leases"]
    assert held["indices"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("line", "value", "indices"),
    [
        ("map 2,0", "2,0", [2, 0]),
        ("map -1", "-1", []),
        ("map -- -1", "-1", []),
        ("map ''", "", []),
        ('map " 1"', " 1", [1]),
        ("map", "4", [4]),
    ],
)
def test_map_reads_a_value_or_the_one_that_is_set(shell, monkeypatch, line, value, indices):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    answer = shown(
        shell, f"{line} --json" if "--" not in line else line.replace("map", "map --json")
    )
    assert answer["value"] == value
    assert [device["index"] for device in answer["devices"]] == indices


def test_a_mistake_is_one_line_with_the_nearest_name(shell):
    said = complaint(shell, "%gpu staus")
    assert said.startswith("UsageError: %gpu has no 'staus'. Did you mean 'status'?")
    assert "\n" not in said
    for cell in ("%gpu who me", "%gpu map 1 2", "%gpu who '", "%gpu --jsn"):
        said = complaint(shell, cell)
        assert said.startswith("UsageError: ")
        assert "\n" not in said


@pytest.mark.parametrize(
    "cell",
    ["%gpu who\nx = 1", "if True:\n    %gpu who", "for n in (1,):\n    %gpu who\nn", "%gpu who\n%gpu who"],
)
def test_an_answer_is_shown_wherever_its_line_stands(shell, cell):
    assert "No GPU is leased" in complaint(shell, cell)


def test_an_answer_that_is_kept_is_not_shown(shell):
    assert complaint(shell, "x = %gpu who\ny = 1") == ""
    assert "No GPU is leased" in repr(shell.user_ns["x"])
    assert "No GPU is leased" in complaint(shell, "%gpu who;")


def test_what_is_called_otherwise_elsewhere_is_pointed_to(shell):
    assert "%gpu check" in complaint(shell, "%gpu doctor")
    assert "%gpu use 0" in complaint(shell, "%gpu release")


def test_help_teaches_with_an_example(shell):
    for line in ("%gpu -h", "%gpu --help", "%gpu map --help"):
        assert "Example:" in complaint(shell, line)


def test_a_question_mark_shows_the_same_help(shell):
    said = shell.object_inspect("%gpu")["docstring"]
    assert said == complaint(shell, "%gpu -h") == HELP
    assert all(f"%gpu {name}" in said for name in SUBCOMMANDS)
    assert all(len(line) <= 80 for line in said.splitlines())


def test_the_machine_stays_open_and_is_changed_when_another_is_meant(shell, simulate):
    context = shell.magics_manager.magics["line"]["gpu"].__self__.context()
    shown(shell, "")
    machine = context.machine()
    shown(shell, "")
    assert context.machine() is machine
    simulate("2xL4")
    assert len(shown(shell, "--json")["devices"]) == 2
    assert context.machine() is not machine


def test_a_machine_that_cannot_be_read_is_a_sentence_and_mends_itself(shell, monkeypatch):
    monkeypatch.setenv("JUPYTER_GPU_SIMULATE", "8xNOTHING")
    assert "NOTHING" in repr(shown(shell, ""))
    monkeypatch.setenv("JUPYTER_GPU_SIMULATE", "1xL4")
    assert "1 GPU is visible" in repr(shown(shell, ""))


def test_in_a_fork_it_says_so(shell):
    shown(shell, "")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, shown(shell, "--json")["process"]["state"].encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 99) == b"forked"
    os.close(read)
    os.close(write)


def test_the_notice_of_the_start_stands_on_top(shell, monkeypatch):
    monkeypatch.setenv("JUPYTER_GPU_NOTICE", "This kernel has no GPU.\nNo GPU is free.")
    text = repr(shown(shell, ""))
    assert text.startswith("This kernel has no GPU.\nNo GPU is free.\n")
