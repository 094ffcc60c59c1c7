"""The checks of the CUDA libraries: what they were built for, remember, and see."""

import dataclasses

import pytest
from support_cli import device, inventory, kernel, overview, uuid

from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.facts import DriverAnswer, Facts, Installed
from jupyter_gpu.core.framework_checks import framework_checks
from jupyter_gpu.core.history import Frozen, History, Imported
from jupyter_gpu.core.visibility import visible

TORCH = Installed("torch", "torch", "2.13.0+cu130", cuda="13.0")
CPU = Installed("torch", "torch", "2.13.0+cpu", other="the CPU only")
JAX = Installed("JAX", "jax", "0.9.0", cuda="12")


def checks(*libraries, value=None, machine=None, process=None, environ=None, **facts):
    machine = machine or inventory()
    seen = dataclasses.replace(
        overview(machine), visible=visible(value, machine, environment={}), process=process
    )
    facts = Facts(installed=libraries, pip="%pip", **facts)
    found = list(framework_checks(seen, facts, environ or {}))
    for check in found:
        assert (check.fix is None) == (check.status == "ok"), check
    return found


def one(*arguments, **options):
    (found,) = checks(*arguments, **options)
    return found


def test_where_nothing_is_installed_nothing_is_said():
    assert checks() == []


def test_a_sound_library_says_its_version_and_its_cuda():
    assert (one(TORCH).status, one(TORCH).found) == ("ok", "2.13.0+cu130 for CUDA 13.0")


def test_outside_a_kernel_it_says_whose_python_this_is():
    assert one(TORCH, python="/srv/python").found.endswith(" in /srv/python")


@pytest.mark.parametrize(
    ("library", "cuda", "fix"),
    [
        (CPU, "13.0", "%pip install --force-reinstall torch"),
        (
            CPU,
            "12.4",
            "%pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
        ),
        (
            Installed("JAX", "jax", "0.9.0", other="the CPU only"),
            "12.4",
            '%pip install --upgrade "jax[cuda12]"',
        ),
        (
            Installed("TensorFlow", "tensorflow", "2.19", other="the CPU only"),
            "13.0",
            '%pip install --upgrade "tensorflow[and-cuda]"',
        ),
    ],
)
def test_a_build_for_the_cpu_is_a_warning_where_there_is_a_gpu(library, cuda, fix):
    check = one(library, driver=DriverAnswer(cuinit=0, cuda=cuda, uuids=("f",)))
    assert (check.status, check.fix) == ("warn", fix)
    assert "cannot use the 4 GPUs here" in check.found


@pytest.mark.parametrize(
    "machine", [Inventory("none", problem="there is none"), inventory(source="simulated")]
)
def test_b132_without_a_real_gpu_a_build_for_the_cpu_is_in_order(machine):
    assert one(CPU, machine=machine).status == "ok"


@pytest.mark.parametrize(
    ("library", "own", "status"),
    [
        (TORCH, "12.8", "warn"),
        (TORCH, "13.2", "ok"),  # a compatibility package: the driver's own word counts
        (JAX, "12.0", "ok"),
        (JAX, "11.8", "warn"),
        (Installed("CuPy", "cupy", "13.4", cuda="13"), "12.8", "warn"),
        (Installed("torch", "torch", "2.9"), "11.0", "ok"),
    ],
)
def test_a_build_too_new_for_the_driver_is_a_warning(library, own, status):
    check = one(library, driver=DriverAnswer(cuinit=0, cuda=own, uuids=("f",) * 4))
    assert check.status == status
    if status == "warn":
        assert f"runs CUDA {own} at most" in check.found
        assert check.fix.startswith("update the driver, or  %pip install")


@pytest.mark.parametrize(
    ("version", "environ", "words"),
    [
        ("1.12.1", {}, "initialises CUDA in torch.cuda.device_count()"),
        ("2.1.0", {}, "remembers the first"),
        ("2.13.0", {"KINETO_USE_DAEMON": "1"}, "KINETO_USE_DAEMON"),
    ],
)
def test_a_version_that_remembers_is_a_warning(version, environ, words):
    check = one(Installed("torch", "torch", version, cuda="11.7"), environ=environ)
    assert (check.status, words in check.found) == ("warn", True)


@pytest.mark.parametrize("name", ["paddle", "pycuda.autoinit"])
def test_a_library_whose_import_took_the_devices_is_a_warning_with_its_cell(name):
    history = History(imports=(Imported(name, name, "3.0", 4, frozen_after=True),))
    check = one(process=kernel(history=history))
    assert (check.name, check.status) == (name, "warn")
    assert check.found.startswith("imported in cell [4]")


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (uuid(1), "ok"),
        (f"{uuid(1)} ", "warn"),
        (uuid(1).replace("f25b", "F25B"), "warn"),
        ("1,0", "ok"),
        ("0,+", "warn"),
        ("-1", "ok"),
        (None, "ok"),
    ],
)
def test_b50_where_torch_reads_a_value_otherwise_than_cuda(value, status):
    check = one(TORCH, value=value)
    assert check.status == status, check
    if status == "warn":
        assert check.fix.startswith('set CUDA_VISIBLE_DEVICES to "')


def test_the_drivers_own_count_is_believed_rather_than_the_rules():
    check = one(TORCH, value="1", driver=DriverAnswer(cuinit=0, uuids=("a", "b")))
    assert check.status == "warn"
    assert "says 1, the driver gives 2" in check.found


def test_what_is_loaded_says_since_when_and_what_it_sees():
    history = History(imports=(Imported("torch", "torch", "2.13.0", 2),))
    loaded = dataclasses.replace(TORCH, loaded=True)
    check = one(loaded, process=kernel(history=history, launched=None, now=None))
    assert check.found.endswith("imported in cell [2]; has not counted devices yet")
    counted = kernel(history=history, torch_count=4, launched=None, now=None)
    assert one(loaded, process=counted).found.endswith("; sees 4 devices")
    assert one(dataclasses.replace(JAX, loaded=True, sees=2)).found.endswith("; sees 2 devices")


def test_what_is_loaded_counts_rather_than_what_is_installed():
    def loaded(version):
        return kernel(history=History(imports=(Imported("torch", "torch", version, 2),)))

    check = one(CPU, process=loaded("2.11.0+cu130"))
    assert (check.status, check.name) == ("ok", "torch")
    assert check.found.startswith(
        "2.11.0+cu130 for CUDA 13.0 loaded (installed is 2.13.0+cpu); imported in cell [2]"
    )
    assert one(TORCH, process=loaded("2.13.0+cpu")).status == "warn"
    assert "loaded (" not in one(TORCH, process=loaded("2.13.0+cu130")).found
    assert "loaded (" not in one(TORCH, process=loaded(None)).found
    assert one(process=loaded("2.2.0")).found.startswith(
        "2.2.0 loaded (not installed): torch 2.2.0"
    )


def test_a_number_that_torch_says_and_cuda_does_not_is_stale():
    history = History(imports=(Imported("torch", "torch", "2.13.0", 2),), frozen=Frozen(3))
    process = kernel(launched=None, now="1", state="frozen", in_force=(0, 1), history=history)
    check = one(TORCH, value="1", process=process)
    assert check.status == "warn"
    assert "stale" in check.found
    assert "restart" in check.fix


def test_the_check_through_nvml_is_noted():
    check = one(TORCH, environ={"PYTORCH_NVML_BASED_CUDA_CHECK": "1"})
    assert "is_available() leaves CUDA open" in check.found


def test_a_framework_that_the_kernelspec_promises_and_is_not_there():
    sentence = "PyTorch is not installed in this kernel's Python:  %pip install torch"
    check = one(process=kernel(missing=(sentence,)))
    assert (check.status, check.fix) == ("warn", "%pip install torch")


def test_b119_the_deprecated_package_is_a_warning():
    check = one(Installed("pynvml", "pynvml", "13.0.1"))
    assert check.status == "warn"
    assert check.fix.startswith("%pip uninstall -y pynvml")


def test_b21_two_fractions_are_a_failure():
    environ = {"XLA_CLIENT_MEM_FRACTION": "0.5", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}
    check = one(environ=environ)
    assert (check.status, "ValueError" in check.found) == ("fail", True)
    environ.popitem()
    assert checks(environ=environ) == []


def test_b54_vllm_fails_on_uuids_and_numbers_are_offered():
    vllm = Installed("vLLM", "vllm", "0.11.0")
    check = one(vllm, value=f"{uuid(3)},{uuid(1)}")
    assert check.status == "warn"
    assert check.fix.startswith('set CUDA_VISIBLE_DEVICES to "3,1"')
    assert one(vllm, value="3,1").status == "ok"
    unsorted = inventory(device(0, pci_bus_id="B"), device(1, pci_bus_id="A"))
    assert "identifiers: index" in one(vllm, value=uuid(1), machine=unsorted).fix
