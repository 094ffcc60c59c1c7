import pytest
from support_cli import device, inventory, lease
from support_failures import case, flat

from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.history import Change, History, Imported
from jupyter_gpu.core.no_gpu import (
    cpu_build_view,
    jax_backend_view,
    no_driver_view,
    no_gpu_view,
    old_driver_view,
)

NONE = Inventory("none", problem="There is no NVIDIA driver library here; install the driver.")


def no_gpu(value, **changes):
    return flat(no_gpu_view(case("no gpu", value=value, **changes)))


@pytest.mark.parametrize("value", ["-1", "", "7", "none"])
def test_the_value_that_shows_none_is_the_answer(value):
    text = no_gpu(value)
    assert text.startswith(
        f'No GPU is visible: CUDA_VISIBLE_DEVICES is "{value}", and the machine has 4 GPUs.'
    )
    assert 'pick a kernel that leases some, such as "PyTorch (1 GPU)"' in text


def test_under_a_lease_a_restart_gives_it_back():
    text = no_gpu("-1", launched="3", leases=[lease("a", (3,))], lease_id="a" * 15)
    assert "lease is on physical 3; a restart makes it visible again." in text
    assert "pick a kernel" not in text


def test_a_refused_kernel_repeats_why():
    text = no_gpu("-1", notices=("This kernel has no GPU.", "No GPU is free."))
    assert "This kernel has no GPU. No GPU is free." in text
    assert "on purpose" not in text


def test_where_no_gpu_can_be_seen_the_reason_is_told():
    assert no_gpu(None, machine=NONE) == f"No GPU can be seen on this machine. {NONE.problem}"
    lost = inventory(device(0, problem="GPU 0 is lost; reboot the machine."))
    assert no_gpu(None, machine=lost) == (
        "No GPU of this machine can be used in this kernel. GPU 0 is lost; reboot the machine. "
        "Check the driver: jupyter gpu doctor"
    )


def test_a_simulated_machine_has_no_cuda():
    assert "simulated: there is no CUDA behind them" in no_gpu("0", state="simulated")


def test_a_value_that_was_set_after_cuda_was_asked_comes_too_late():
    history = History(changes=(Change(5, "-1", "0", "os.environ"),))
    assert no_gpu("0", launched="-1", history=history) == (
        'CUDA_VISIBLE_DEVICES was "-1", which shows no GPU, until cell [5]. '
        "CUDA was asked before that and keeps its answer: restart the kernel."
    )
    assert 'was "-1" when this kernel started' in no_gpu("0", launched="-1")


def test_a_value_that_is_in_order_points_at_the_driver():
    assert no_gpu("0,1") == (
        "CUDA finds no GPU, though 2 GPUs are visible by CUDA_VISIBLE_DEVICES. "
        'CUDA_VISIBLE_DEVICES is "0,1". It did not change since this kernel started. '
        "Check the driver: jupyter gpu doctor"
    )
    changed = History(changes=(Change(5, "1", "0", "%env"),))
    assert "did not change" not in no_gpu("0", launched="1", history=changed)


def test_no_driver_though_nvml_works_is_a_container_without_it():
    text = flat(no_driver_view(case("no driver")))
    assert text.startswith("CUDA finds no NVIDIA driver in this kernel, though NVML lists 4 GPUs.")
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in text
    assert flat(no_driver_view(case("no driver", machine=NONE))).startswith("No GPU can be seen")
    assert "simulated" in flat(no_driver_view(case("no driver", state="simulated")))


def test_an_old_driver_is_named_with_what_it_offers():
    message = "The NVIDIA driver on your system is too old (found version 11040). Please update"
    assert flat(old_driver_view(case("old driver", message))) == (
        "The driver here offers CUDA 11.4, and torch was built for a newer one. "
        "Update the driver (580.159.04), or install torch built for CUDA 11.4 or older."
    )


def test_a_driver_that_cuda_cannot_tell_from_none_is_not_called_old():
    text = flat(old_driver_view(case("old driver", framework="CuPy")))
    assert text.startswith("CUDA finds a driver older than CuPy needs, or finds none.")
    assert "NVML reports driver 580.159.04, which offers CUDA 13.0." in text
    assert flat(old_driver_view(case("old driver", machine=NONE))).startswith("No GPU can be seen")


def test_devices_in_force_that_a_framework_did_not_find_before():
    assert no_gpu("1,2", state="frozen", in_force=(1, 2)) == (
        "The CUDA driver has 2 devices in this kernel, but none was found before. "
        "That answer is kept: restart the kernel."
    )


def test_a_build_without_cuda_is_told_and_how_to_get_another():
    history = History((Imported("torch", "torch", "2.13.0+cpu", 1),))
    text = flat(cpu_build_view(case("cpu build", history=history)))
    assert text.startswith("torch 2.13.0+cpu is a build without CUDA: it knows the CPU only.")
    assert "2 GPUs are visible here." in text
    assert "%pip install --force-reinstall torch" in text
    assert "This driver offers CUDA 13.0; builds for each CUDA: https://pytorch.org" in text


def test_another_build_is_not_recommended_where_it_would_not_help():
    for changes in ({"state": "simulated"}, {"machine": NONE}):
        text = flat(cpu_build_view(case("cpu build", **changes)))
        assert "pip" not in text
        assert "would not find" in text


def test_jax_without_a_backend():
    text = flat(jax_backend_view(case("jax backend", framework="JAX")))
    assert text.startswith("JAX has no GPU backend, though 2 GPUs are visible here.")
    assert 'pip install -U "jax[cuda13]"' in text
    older = inventory()
    older = Inventory("nvml", "550.1", "12.4", devices=older.devices)
    assert '"jax[cuda12]"' in flat(jax_backend_view(case("jax backend", machine=older)))
    assert "No GPU is visible" in flat(jax_backend_view(case("jax backend", value="-1")))
