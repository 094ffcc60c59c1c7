"""``%gpu export``: what a script is given, as a table, in a real shell, and in a real bash."""

import dataclasses
import json
import os
import subprocess

import pytest
from support_cli import device, inventory, kernel, lease, overview, uuid
from support_shell import make_shell

import jupyter_gpu
from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.environment import remembered_caps
from jupyter_gpu.core.export import export_view, exported
from jupyter_gpu.core.kernel_process import InForce
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.render_text import as_text
from jupyter_gpu.core.request import Request

ORDERED = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
PLAIN = "export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES="


def export(environ, machine=None, **process):
    value = environ.get("CUDA_VISIBLE_DEVICES")
    process = kernel(now=value, launched=value, **process)
    seen = overview(machine, value=value, process=process)
    return exported(seen, process, {"HOME": "/home/a", **environ})


@pytest.mark.parametrize(
    ("environ", "in_force", "line"),
    [
        ({**ORDERED, "CUDA_VISIBLE_DEVICES": "0,1"}, None, f"{PLAIN}0,1"),
        ({**ORDERED, "CUDA_VISIBLE_DEVICES": "0,1"}, (0, 1), f"{PLAIN}0,1"),
        ({**ORDERED, "CUDA_VISIBLE_DEVICES": uuid(1)}, (1,), f"{PLAIN}{uuid(1)}"),
        ({**ORDERED, "CUDA_VISIBLE_DEVICES": "1"}, (3, 0), f"{PLAIN}3,0"),
        ({**ORDERED, "CUDA_VISIBLE_DEVICES": "1"}, (), f"{PLAIN}-1"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, (2,), f"{PLAIN}2"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, None, "export CUDA_VISIBLE_DEVICES=1"),
        ({"CUDA_VISIBLE_DEVICES": ""}, None, "export CUDA_VISIBLE_DEVICES=''"),
        ({"CUDA_VISIBLE_DEVICES": " 0; rm"}, None, "export CUDA_VISIBLE_DEVICES=' 0; rm'"),
        ({}, None, "unset CUDA_VISIBLE_DEVICES"),
        ({}, (0, 1, 2, 3), "unset CUDA_VISIBLE_DEVICES"),
        (ORDERED, None, "unset CUDA_VISIBLE_DEVICES; export CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        ({}, (2,), f"{PLAIN}2"),
    ],
)
def test_what_is_in_force_is_exported_or_else_what_is_set(environ, in_force, line):
    found = export(environ, in_force=in_force, state="open" if in_force is None else "frozen")
    assert found.line == line
    assert found.as_json()["schema"] == 1
    assert "HOME" not in found.environment


def test_a_change_that_came_too_late_is_said_not_to_be_exported():
    found = export({"CUDA_VISIBLE_DEVICES": "1"}, in_force=(3, 0), state="frozen")
    text = " ".join(as_text(export_view(found)).split())
    assert 'in force: physical 3, 0. CUDA_VISIBLE_DEVICES is "1" now, which came too late' in text
    assert "came too late" not in str(export({"CUDA_VISIBLE_DEVICES": "1"}).notes)


def test_devices_whose_numbers_are_not_cudas_are_exported_by_uuid():
    part = device(1, kind="mig", name="NVIDIA H200 MIG 1g.18gb", profile="1g.18gb")
    machine = inventory(device(0), part)
    found = export({"CUDA_VISIBLE_DEVICES": "0"}, machine, in_force=(1,), state="frozen")
    assert found.environment["CUDA_VISIBLE_DEVICES"] == uuid(1)


def test_a_device_that_cannot_be_named_leaves_what_is_set():
    value = {"CUDA_VISIBLE_DEVICES": "1"}
    process = dataclasses.replace(
        kernel(state="frozen", now="1"), in_force=(InForce(0, None, None),)
    )
    seen = overview(Inventory("none"), value="1", process=process)
    found = exported(seen, process, value)
    assert found.environment == value
    assert "cannot be named here" in found.notes[0]


def test_whose_lease_a_script_runs_under_is_said():
    own = kernel(now="0", launched="0", lease_id="a" * 15)
    seen = overview(leases=[lease("a", (0,))], value="0", process=own)
    notes = exported(seen, own, {"CUDA_VISIBLE_DEVICES": "0"}).notes
    assert "only while this kernel lives" in notes[-1]
    assert "jupyter gpu run" in notes[-1]
    notes = export({"CUDA_VISIBLE_DEVICES": "0"}).notes
    assert "No lease stands behind this" in notes[-1]


@pytest.mark.parametrize("named", [True, False])
def test_a_share_is_exported_with_its_caps_and_the_advice_is_its_own_amount(named):
    whole = lease("a", (0,))
    record = dataclasses.replace(
        whole.record, units=DEVICE_UNITS // 4, request=Request.parse({"gpus": "1/4"})
    )
    own = kernel(now="0", launched="0", lease_id="a" * 15)
    seen = overview(leases=[dataclasses.replace(whole, record=record)], value="0", process=own)
    caps = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.25", "PYTORCH_ALLOC_CONF": "a:1,b:2"}
    more = {"JUPYTER_GPU_CAPS": remembered_caps({}, {**caps, "GONE": "1"})} if named else {}
    environ = {**ORDERED, "CUDA_VISIBLE_DEVICES": "0", "HOME": "/home/a", **caps, **more}
    found = exported(seen, own, environ)
    expected = {**ORDERED, "CUDA_VISIBLE_DEVICES": "0", **(caps if named else {})}
    assert found.environment == expected
    assert ("PYTORCH_ALLOC_CONF=a:1,b:2" in found.line) == named
    assert "jupyter gpu run --gpus 1/4 -- COMMAND" in found.notes[-1]


@pytest.mark.parametrize("text", ["", "no json", "[1]", "3", "[" * 100_000, '{"a b; rm": []}'])
def test_caps_that_cannot_be_read_are_not_exported(text):
    environ = {"CUDA_VISIBLE_DEVICES": "0", "JUPYTER_GPU_CAPS": text, "a b; rm": "x"}
    assert export(environ).environment == {"CUDA_VISIBLE_DEVICES": "0"}


def test_the_line_is_whole_in_text_however_long():
    value = ",".join(map(uuid, range(4)))
    text = as_text(export_view(export({**ORDERED, "CUDA_VISIBLE_DEVICES": value})))
    assert f"  {PLAIN}{value}" in text.splitlines()


def test_in_a_shell_it_exports_the_lease_and_bash_understands_it(eight_gpus, monkeypatch):
    with jupyter_gpu.acquire(2) as held, make_shell() as shell:
        for name, value in held.environment.items():
            monkeypatch.setenv(name, value)
        shell.run_line_magic("load_ext", "jupyter_gpu")
        answer = shell.run_line_magic("gpu", "export --json")
        text = repr(shell.run_line_magic("gpu", "export"))
    json.dumps(answer)
    assert answer["line"] == f"{PLAIN}0,1"
    assert f"  {PLAIN}0,1\n" in text
    assert "only while this kernel lives" in " ".join(text.split())
    script = f"{answer['line']}; echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"
    clean = {name: v for name, v in os.environ.items() if not name.startswith("CUDA_")}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env=clean
    )
    assert done.stdout == "0,1 PCI_BUS_ID\n"
