from support_cli import device, inventory, uuid
from support_failures import case, flat

from jupyter_gpu.core.history import Frozen, History
from jupyter_gpu.core.library_failures import (
    fractions_view,
    memory_growth_view,
    tensorflow_late_view,
    unreadable_value_view,
    uuid_view,
)


def test_tensorflows_devices_are_set_up_once_per_kernel():
    history = History(frozen=Frozen(3, call="tf.config.list_physical_devices"))
    assert flat(tensorflow_late_view(case("tensorflow late", history=history))) == (
        "TensorFlow's devices are set up once per kernel, before their first use. "
        "They are in use already. CUDA was initialised by cell [3] "
        "(tf.config.list_physical_devices). "
        "Restart the kernel, and run that cell once, before anything else of TensorFlow."
    )
    assert "initialised" not in flat(tensorflow_late_view(case("tensorflow late")))


def test_memory_growth_is_for_all_gpus():
    text = flat(memory_growth_view(case("memory growth")))
    assert text.startswith("Memory growth is set for all GPUs of a kernel, or for none.")
    assert "set_memory_growth(gpu, True)" in text
    assert "%env TF_FORCE_GPU_ALLOW_GROWTH=true" in text


def test_jax_takes_one_of_two_variables():
    text = flat(fractions_view(case("jax fractions", libraries=["brax"])))
    assert 'del os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"]' in text
    assert "Raised inside brax." in text


def literal(text):
    return f"invalid literal for int() with base 10: '{text}'"


def test_a_library_that_wants_numbers_is_offered_them():
    value = f"{uuid(3)},{uuid(1)}"
    found = case("uuid", literal(uuid(3)), value, framework=None, libraries=["vllm"])
    assert flat(uuid_view(found)) == (
        "vllm reads CUDA_VISIBLE_DEVICES as numbers, and it holds UUIDs here. "
        "The same devices by their numbers: %env CUDA_DEVICE_ORDER=PCI_BUS_ID "
        "%env CUDA_VISIBLE_DEVICES=3,1 "
        "To start with them always: identifiers=index in the kernel's GPU request."
    )


def test_a_uuid_of_something_else_is_none_of_ours():
    assert uuid_view(case("uuid", literal("GPU-of-mine"), "0")) is None
    assert uuid_view(case("uuid", "invalid literal", uuid(3))) is None


def test_a_part_of_a_gpu_has_no_number():
    part = "MIG-0000aaaa-5d9e-4a86-9c04-71e6a3d8f25b"
    machine = inventory(device(0, mig_mode=True), device(0, kind="mig", parent=uuid(0)))
    machine = inventory(
        machine.devices[0],
        type(machine.devices[1])(0, part, "NVIDIA H200", kind="mig", parent=uuid(0)),
    )
    text = flat(uuid_view(case("uuid", literal(part), part, machine=machine, framework=None)))
    assert text.startswith("int() reads CUDA_VISIBLE_DEVICES as numbers")
    assert "A MIG device has no number of its own" in text


def test_a_value_that_torch_cannot_read():
    found = case("unreadable value", literal("+"), "1,+")
    text = flat(unreadable_value_view(found))
    assert text.startswith('torch cannot read CUDA_VISIBLE_DEVICES="1,+".')
    assert "CUDA makes physical 1 of it." in text
    assert "%env CUDA_VISIBLE_DEVICES=1" in text
    assert unreadable_value_view(case("unreadable value", literal("x"), "1")) is None
    assert "no GPU of it" in flat(
        unreadable_value_view(case("unreadable value", literal("+"), "+"))
    )
