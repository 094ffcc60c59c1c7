"""The checks of CUDA's variables, Slurm's and a container's."""

import dataclasses

import pytest
from support_cli import device, inventory, kernel, overview

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.facts import Facts
from jupyter_gpu.core.variable_checks import variable_checks
from jupyter_gpu.core.visibility import visible

MIXED = inventory(device(0, name="NVIDIA T4"), device(1, name="NVIDIA H200"))
STEP = {"SLURM_JOB_ID": "17", "SLURMD_NODENAME": "node1"}


def checks(environ, machine=None, process=None, **facts):
    machine = machine or inventory()
    seen = dataclasses.replace(
        overview(machine),
        visible=visible(environ.get("CUDA_VISIBLE_DEVICES"), machine, environment=environ),
        process=process,
    )
    found = list(variable_checks(seen, Facts(**facts), environ))
    for check in found:
        assert (check.fix is None) == (check.status == "ok"), check
    return found


def one(name, *arguments, **options):
    (found,) = [check for check in checks(*arguments, **options) if check.name == name]
    return found


def test_a_plain_environment_has_two_lines():
    assert [(check.name, check.status) for check in checks({})] == [
        ("CUDA_VISIBLE_DEVICES", "ok"),
        ("CUDA_DEVICE_ORDER", "ok"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "status", "words"),
    [
        pytest.param("CUDA_VISIBLE_DEVICES", "1,0", "ok", '"1,0": physical 1, 0', id="plain"),
        pytest.param("CUDA_VISIBLE", "1", "warn", "did you mean CUDA_VISIBLE_DEVICES?", id="B16"),
        pytest.param("CUDA_VISABLE_DEVICES", "0", "warn", "did you mean", id="B17"),
        pytest.param("CUDA_VISIBLE_DEVICE", "0", "warn", "did you mean", id="B17-device"),
        pytest.param("CUDA_VISIBLE_DEVICES", "", "ok", "no GPU", id="B15"),
        pytest.param("CUDA_VISIBLE_DEVICES", "0-2", "warn", "Ranges are not read", id="B51"),
        pytest.param("CUDA_VISIBLE_DEVICES", "7", "warn", "index 7 does not exist", id="B94"),
        pytest.param("CUDA_VISIBLE_DEVICES", "0,1,2,1", "warn", "named twice", id="B50"),
    ],
)
def test_what_cuda_makes_of_the_variable(name, value, status, words):
    check = one("CUDA_VISIBLE_DEVICES", {name: value})
    assert (check.status, words in check.found) == (status, True), check


def test_b17_the_remedy_names_the_name_that_is_wrong():
    check = one("CUDA_VISIBLE_DEVICES", {"CUDA_VISABLE_DEVICES": "3"})
    assert check.fix == (
        'unset CUDA_VISABLE_DEVICES, and set CUDA_VISIBLE_DEVICES to "3" if that is meant'
    )


@pytest.mark.parametrize("process", [None, kernel(launched=None, now=None)])
def test_on_a_mig_machine_without_the_variable_the_remedy_names_a_mig_device(process):
    machine = inventory(
        device(0, mig_mode=True),
        *(Device(0, f"MIG-{n}", "NVIDIA H200", kind="mig") for n in (1, 2)),
        device(1),
    )
    check = one("CUDA_VISIBLE_DEVICES", {}, machine, process)
    assert check.status == "warn"
    assert check.fix == (
        "set CUDA_VISIBLE_DEVICES to the UUID of a MIG device before CUDA starts, as  MIG-1"
    )


class TestInAKernel:
    """Launched with, set now, in force."""

    def test_a_value_from_the_start_needs_no_more_words(self):
        found = one(
            "CUDA_VISIBLE_DEVICES",
            {"CUDA_VISIBLE_DEVICES": "3"},
            process=kernel(launched="3", now="3"),
        )
        assert found.found == '"3": physical 3'

    def test_a_change_while_open_counts_and_the_start_is_told(self):
        process = kernel(launched="3", now="1")
        found = one("CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES": "1"}, process=process)
        assert (found.status, found.found) == ("ok", '"1": physical 1; launched with "3"')

    def test_b14_a_change_too_late_is_a_warning_with_what_is_in_force(self):
        process = kernel(launched="1", now="", state="frozen", in_force=(1,))
        found = one("CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES": ""}, process=process)
        assert found.status == "warn"
        assert found.found == (
            '"" now, but that changes nothing in this kernel: in force is cuda:0 = physical 1; '
            'launched with "1".'
        )
        assert "restart" in found.fix

    def test_a_late_value_that_means_nothing_says_that_too(self):
        process = kernel(launched="1", now="7", state="frozen", in_force=(1,))
        found = one("CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES": "7"}, process=process)
        assert "The index 7 does not exist here" in found.found

    def test_a_variable_that_was_dropped_too_late(self):
        process = kernel(launched="1", now=None, state="frozen", in_force=(1,))
        found = one("CUDA_VISIBLE_DEVICES", {}, process=process)
        assert found.found.startswith("not set any more, but that changes nothing")

    def test_a_bad_value_says_its_start_too(self):
        process = kernel(launched=None, now="0-2")
        found = one("CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES": "0-2"}, process=process)
        assert found.found.endswith("launched without it.")


@pytest.mark.parametrize(
    ("machine", "environ", "status", "words"),
    [
        pytest.param(MIXED, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "warn", "FASTEST_FIRST", id="B28"),
        (MIXED, {}, "warn", "is not set and the GPUs here differ"),
        (MIXED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "ok", "as nvidia-smi does"),
        (MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-00000001"}, "ok", "no number"),
        (inventory(), {}, "ok", "alike"),
        (inventory(device(0), device(1, name="L4", problem="it is lost")), {}, "ok", "alike"),
        (inventory(), {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "ok", "alike"),
    ],
)  # fmt: skip
def test_the_order_matters_where_gpus_differ(machine, environ, status, words):
    check = one("CUDA_DEVICE_ORDER", environ, machine)
    assert (check.status, words in check.found) == (status, True), check
    others = [c for c in checks(environ, machine) if c.name != "CUDA_DEVICE_ORDER"]
    assert all(c.status == "ok" for c in others)  # said once


@pytest.mark.parametrize(
    ("environ", "status", "words"),
    [
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "0"}, "ok", "CUDA_VISIBLE_DEVICES and NVML say", id="B87"
        ),
        pytest.param(
            {"SLURM_JOB_GPUS": "5", "CUDA_VISIBLE_DEVICES": "0"}, "ok",
            'SLURM_JOB_GPUS 5 counts on the whole node, CUDA_VISIBLE_DEVICES "0" inside the job',
            id="B90",
        ),
        (
            {"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "1", "CUDA_VISIBLE_DEVICES": "1"},
            "ok", "SLURM_STEP_GPUS and CUDA_VISIBLE_DEVICES agree on 1",
        ),
        (
            {"SLURM_JOB_GPUS": "3", "SLURM_STEP_GPUS": "1", "SLURM_STEP_ID": "4294967290"},
            "ok", "SLURM_JOB_GPUS 3",
        ),
        ({"SLURM_GPUS": "2", "CUDA_VISIBLE_DEVICES": "2"}, "warn", "number of GPUs in SLURM_GPUS"),
        (
            {"SLURM_GPUS": "2", "CUDA_VISIBLE_DEVICES": "2", "SLURM_JOB_GPUS": "2"},
            "ok", "agree on 2",
        ),
        ({"SLURM_GPUS": "1", "CUDA_VISIBLE_DEVICES": "1"}, "ok", "job 17"),
        ({"SLURM_SHARDS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0"}, "ok", "shards"),
        ({"SLURMD_NODENAME": ""}, "warn", "only an allocation"),
    ],
)  # fmt: skip
def test_slurms_variables(environ, status, words):
    check = one("Slurm", {**STEP, **environ})
    assert (check.status, words in check.found) == (status, True), check


def test_b94_the_schedulers_number_is_called_that():
    environ = {**STEP, "SLURM_STEP_GPUS": "7", "CUDA_VISIBLE_DEVICES": "7"}
    check = one("CUDA_VISIBLE_DEVICES", environ, inventory(device(0)))
    assert check.status == "warn"
    assert "the scheduler's number (SLURM_STEP_GPUS)" in check.found


def test_outside_a_job_and_a_container_nothing_is_said_of_them():
    names = {check.name for check in checks({"SLURM_GPUS": "2"}, container=True)}
    assert not names & {"Slurm", "container"}


@pytest.mark.parametrize(
    ("environ", "facts", "status", "words"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, {}, "ok", 'NVIDIA_VISIBLE_DEVICES is "all"'),
        pytest.param(
            {"NVIDIA_VISIBLE_DEVICES": "MIG-1,MIG-2,MIG-3,MIG-4"}, {}, "ok",
            "4 MIG devices, and of those a process gets one for certain", id="B100",
        ),
        pytest.param({}, {"foreign_pids": True}, "ok", "NVML tells the host's pids", id="B103"),
    ],
)  # fmt: skip
def test_a_container(environ, facts, status, words):
    check = one("container", environ, **facts)
    assert (check.status, words in check.found) == (status, True), check


def test_a_container_that_was_given_no_gpu_says_how_to_have_some():
    none = dataclasses.replace(inventory(), devices=())
    check = one("container", {"NVIDIA_VISIBLE_DEVICES": "void"}, none)
    assert (check.status, "--gpus all" in check.fix) == ("warn", True)


def test_a_value_cannot_draw_on_the_terminal():
    environ = {**STEP, "SLURM_JOB_ID": "1\x1b[2J", "CUDA_VISIBLE_DEVICES": "\x1b[2J"}
    assert all(check.found.isprintable() for check in checks(environ))
    assert Device
