"""The machine as NVML reports it, over a double of the driver library, in processes of their own."""

import subprocess
import sys

import pytest
from doubles import DriverDouble, gpu, mig
from doubles.fixtures import driver_double, driver_libraries, kept_reader, old_driver_libraries
from doubles.machine import H200_BYTES

from jupyter_gpu.adapters.nvml_gpu import Answer, numa_node, profile_from, profile_of
from jupyter_gpu.core import nvml_words
from jupyter_gpu.core.devices import Process

__all__ = ["driver_double", "driver_libraries", "kept_reader", "old_driver_libraries"]

SENTENCES = {
    3: "does not support",
    4: "access",
    9: "modprobe nvidia",
    12: "container with its GPUs",
    13: "update the driver",
    15: "reboot",
    16: "--gpu-reset",
    18: "running kernels are fine",
    999: "recreate the container",
    17: "code 17",
}
ON_A_GPU = {**SENTENCES, 12: "reinstall the driver", 999: "recreate it"}


@pytest.fixture
def read(kept_reader):
    """Write a machine and return what our adapter reports of it."""
    double, ask = kept_reader

    def write_and_read(*gpus, sensors=True, **machine):
        double.write(*gpus, **machine)
        return ask(sensors=sensors)

    return write_and_read


def assert_plain(sentence):
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert "NVML_ERROR" not in sentence
    assert "Traceback" not in sentence


def test_a_healthy_gpu_is_reported_whole(read):
    inventory = read(gpu(0, utilization_percent=37, memory_used_bytes=5 << 30, minor=3))
    (device,) = inventory.devices
    assert (inventory.source, inventory.problem) == ("nvml", None)
    assert (inventory.driver, inventory.cuda) == ("580.95.05", "13.0")
    assert device.uuid == gpu(0)["uuid"]
    assert (device.index, device.name, device.kind) == (0, "NVIDIA H200", "gpu")
    assert device.pci_bus_id == "00000000:1B:00.0"
    assert (device.memory_total_bytes, device.memory_used_bytes) == (H200_BYTES, 5 << 30)
    assert (device.utilization_percent, device.temperature_celsius) == (37, 31)
    assert device.power_watts == 75.5
    assert device.minor == 3
    assert (device.mig_mode, device.exclusive, device.display) == (False, False, False)
    assert (device.processes, device.problem) == ((), None)


@pytest.mark.parametrize(("number", "words"), [(13000, "13.0"), (12080, "12.8"), (11040, "11.4")])
def test_the_cuda_version_reads_as_people_write_it(read, number, words):
    assert read(gpu(0), cuda=number).cuda == words


def test_unknown_versions_do_not_hide_the_gpus(read):
    broken = {"nvmlSystemGetDriverVersion": 999, "nvmlSystemGetCudaDriverVersion": 13}
    inventory = read(gpu(0), errors=broken)
    assert (inventory.driver, inventory.cuda) == (None, None)
    assert inventory.devices[0].problem is None


def test_without_sensors_the_slow_questions_are_not_asked(read):
    slow = {
        "nvmlDeviceGetUtilizationRates": 15,
        "nvmlDeviceGetPowerUsage": 15,
        "nvmlDeviceGetTemperature": 15,
    }
    (device,) = read(gpu(0, errors=slow), sensors=False).devices
    assert device.problem is None
    assert device.memory_total_bytes == H200_BYTES
    assert (device.utilization_percent, device.power_watts, device.temperature_celsius) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize("code", SENTENCES)
def test_an_error_when_nvml_starts_becomes_a_sentence_about_the_machine(driver_double, code):
    driver_double.write(gpu(0), errors={"nvmlInit": code})
    with driver_double.reader() as read:
        inventory = read()
        assert inventory.source == ("none" if code == 12 else "nvml")
        assert inventory.devices == ()
        assert SENTENCES[code] in inventory.problem
        assert_plain(inventory.problem)
        driver_double.write(gpu(0))
        assert read().problem is None, "a later read tries again"


@pytest.mark.parametrize("code", SENTENCES)
def test_an_error_when_gpus_are_counted_becomes_a_sentence_about_the_machine(read, code):
    inventory = read(gpu(0), errors={"nvmlDeviceGetCount": code})
    assert (inventory.source, inventory.devices) == ("nvml", ())
    assert SENTENCES[code] in inventory.problem
    assert_plain(inventory.problem)
    assert len(read(gpu(0)).devices) == 1, "the next read starts afresh"


@pytest.mark.parametrize("code", set(ON_A_GPU) - {4})
def test_a_refused_handle_leaves_a_row_without_uuid_that_says_why(read, code):
    refused = gpu(1, errors={"nvmlDeviceGetHandleByIndex": code})
    inventory = read(gpu(0), refused, gpu(2))
    assert [device.index for device in inventory.devices] == [0, 1, 2]
    lost = inventory.devices[1]
    assert lost.uuid is None
    assert lost.problem.startswith("GPU 1 ")
    assert ON_A_GPU[code] in lost.problem
    assert_plain(lost.problem)
    assert inventory.devices[0].problem is inventory.devices[2].problem is inventory.problem is None


@pytest.mark.parametrize("code", ON_A_GPU)
def test_an_error_of_the_uuid_is_the_gpus_problem(read, code):
    device = read(gpu(0), gpu(1, errors={"nvmlDeviceGetUUID": code})).devices[1]
    assert device.uuid is None
    assert device.name == "NVIDIA H200"
    assert ON_A_GPU[code] in device.problem
    assert_plain(device.problem)


@pytest.mark.parametrize(
    "question",
    ["nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses"],
)
@pytest.mark.parametrize("code", [4, 9, 15, 16, 18, 999])
def test_an_error_of_what_a_lease_depends_on_is_the_gpus_problem(read, question, code):
    device = read(gpu(0, errors={question: code})).devices[0]
    assert device.uuid == gpu(0)["uuid"]
    assert ON_A_GPU[code] in device.problem


@pytest.mark.parametrize("code", [3, 4, 13, 999])
@pytest.mark.parametrize(
    "question",
    [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetPciInfo",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetDisplayActive",
        "nvmlDeviceGetMigMode",
    ],
)
def test_a_missing_sensor_leaves_its_column_blank_and_the_gpu_usable(read, question, code):
    device = read(gpu(0, errors={question: code})).devices[0]
    assert device.problem is None
    assert device.memory_total_bytes == H200_BYTES


@pytest.mark.parametrize("code", [15, 16])
def test_a_sensor_that_says_the_gpu_is_gone_is_believed(read, code):
    device = read(gpu(0, errors={"nvmlDeviceGetPowerUsage": code})).devices[0]
    assert ON_A_GPU[code] in device.problem


def test_sensors_that_are_not_there_are_unknown(read):
    absent = {"utilization_percent": None, "temperature_celsius": None, "power_watts": None}
    device = read(gpu(0, **absent)).devices[0]
    assert device.utilization_percent is None
    assert device.temperature_celsius is None
    assert device.power_watts is None
    assert device.problem is None


def test_a_lost_gpu_in_the_middle_leaves_the_others_alone(read):
    inventory = read(gpu(0), gpu(1), gpu(2, errors={"*": 15}), gpu(3))
    assert [device.index for device in inventory.devices] == [0, 1, 2, 3]
    assert "GPU 2 is lost" in inventory.devices[2].problem
    assert [device.problem for device in inventory.devices if device.index != 2] == [None] * 3
    assert inventory.devices[3].uuid == gpu(3)["uuid"]


def test_a_lost_gpu_that_still_tells_its_uuid_keeps_it(read):
    device = read(gpu(0, errors={"nvmlDeviceGetMemoryInfo": 15})).devices[0]
    assert device.uuid == gpu(0)["uuid"]
    assert (device.memory_total_bytes, device.memory_used_bytes) == (None, None)
    assert "is lost" in device.problem


def test_a_gpu_that_is_pulled_out_while_the_library_is_open_is_gone_at_the_next_read(read):
    assert len(read(gpu(0), gpu(1)).devices) == 2
    assert [device.uuid for device in read(gpu(1)).devices] == [gpu(1)["uuid"]]


def test_a_hidden_gpu_is_left_out_and_counted(read):
    hidden = gpu(2, errors={"nvmlDeviceGetHandleByIndex": 4})
    inventory = read(gpu(0), gpu(1), hidden, gpu(3))
    assert [device.index for device in inventory.devices] == [0, 1, 3]
    assert all(device.problem is None for device in inventory.devices)
    assert inventory.problem.startswith("1 of 4 GPUs is hidden")
    assert_plain(inventory.problem)


def test_several_hidden_gpus_are_counted_together(read):
    refused = {"nvmlDeviceGetHandleByIndex": 4}
    inventory = read(gpu(0, errors=refused), gpu(1, errors=refused))
    assert inventory.devices == ()
    assert inventory.problem.startswith("2 of 2 GPUs are hidden")


def test_a_driver_without_gpus_says_so(read):
    inventory = read()
    assert (inventory.source, inventory.devices) == ("nvml", ())
    assert inventory.problem == nvml_words.NO_GPU


def test_a_total_of_zero_is_unknown_memory(read):
    device = read(gpu(0, memory_total_bytes=0)).devices[0]
    assert (device.memory_total_bytes, device.memory_used_bytes) == (None, None)
    assert device.memory_free_bytes is None
    assert device.problem is None


def test_memory_shared_with_the_system_is_unknown(read):
    device = read(gpu(0, memory_total_bytes=None)).devices[0]
    assert (device.memory_total_bytes, device.memory_used_bytes) == (None, None)
    assert device.problem is None


def test_what_the_driver_reserves_is_not_in_use(read):
    assert read(gpu(0, memory_reserved_bytes=645_000_000)).devices[0].memory_used_bytes == 0


@pytest.mark.parametrize("code", [2, 13, 25])
def test_a_driver_that_refuses_the_new_memory_question_is_asked_the_old_one(read, code):
    refusing = gpu(0, memory_reserved_bytes=7, errors={"nvmlDeviceGetMemoryInfo_v2": code})
    device = read(refusing).devices[0]
    assert (device.memory_total_bytes, device.memory_used_bytes) == (H200_BYTES, 7)
    assert device.problem is None


def test_an_old_driver_without_the_new_functions_is_read_all_the_same(
    old_driver_libraries, tmp_path
):
    double = DriverDouble(old_driver_libraries, tmp_path / "machine.json")
    double.write(gpu(0, memory_reserved_bytes=7, processes=[{"pid": 41, "memory_bytes": 5}]))
    with double.reader() as read:
        device = read().devices[0]
    assert (device.memory_total_bytes, device.memory_used_bytes) == (H200_BYTES, 7)
    assert device.processes == (Process(41, 5),)
    assert device.temperature_celsius == 31
    assert device.problem is None


def test_compute_processes_are_listed_by_pid_with_mps_clients_and_without_graphics(read):
    running = [
        {"pid": 900, "memory_bytes": 1 << 30},
        {"pid": 30, "memory_bytes": None},
        {"pid": 500, "memory_bytes": 7, "mps": True},
        {"pid": 777, "memory_bytes": 9, "graphics": True},
    ]
    assert read(gpu(0, processes=running)).devices[0].processes == (
        Process(30, None),
        Process(500, 7),
        Process(900, 1 << 30),
    )


def test_a_process_in_both_lists_is_one_process(read):
    running = [{"pid": 30}, {"pid": 30, "memory_bytes": 8, "mps": True}]
    assert read(gpu(0, processes=running)).devices[0].processes == (Process(30, 8),)


def test_sixty_processes_fit(read):
    running = [{"pid": 100 + number, "memory_bytes": number} for number in range(60)]
    assert len(read(gpu(0, processes=running)).devices[0].processes) == 60


@pytest.mark.parametrize("code", [3, 13])
@pytest.mark.parametrize("mps", ["", "MPS"])
def test_a_process_list_that_the_driver_does_not_have_is_empty(read, mps, code):
    question = f"nvmlDeviceGet{mps}ComputeRunningProcesses"
    device = read(gpu(0, errors={question: code})).devices[0]
    assert (device.processes, device.problem) == ((), None)


@pytest.mark.parametrize(("mode", "exclusive"), [(0, False), (2, True), (3, True)])
def test_compute_modes_that_admit_at_most_one_process_are_exclusive(read, mode, exclusive):
    assert read(gpu(0, compute_mode=mode)).devices[0].exclusive is exclusive


def test_a_gpu_with_a_screen_is_marked(read):
    assert [device.display for device in read(gpu(0, display=True), gpu(1)).devices] == [
        True,
        False,
    ]


def test_a_gpu_in_mig_mode_is_followed_by_its_mig_devices(read):
    parts = [mig(0), mig(2, "2g.35gb", processes=[{"pid": 12, "memory_bytes": 3}])]
    inventory = read(gpu(0), gpu(1, mig_mode=True, mig=parts, minor=5), gpu(2))
    whole, first, second = inventory.devices[1:4]
    assert [device.kind for device in inventory.devices] == ["gpu", "gpu", "mig", "mig", "gpu"]
    assert [device.index for device in inventory.devices] == [0, 1, 1, 1, 2]
    assert whole.mig_mode
    assert "GPU 1 is in MIG mode and is leased in parts" in whole.problem
    assert_plain(whole.problem)
    assert (first.uuid, first.profile, first.parent) == (mig(0)["uuid"], "1g.18gb", whole.uuid)
    assert (second.uuid, second.profile) == (mig(2)["uuid"], "2g.35gb")
    assert first.name == "NVIDIA H200 MIG 1g.18gb"
    assert first.memory_total_bytes == 16 << 30
    assert (first.problem, first.mig_mode, first.minor) == (None, False, 5)
    assert (first.processes, second.processes) == ((), (Process(12, 3),))
    assert whole.processes == (Process(12, 3),)
    assert inventory.problem is None


def test_a_gpu_in_mig_mode_without_parts_says_how_to_make_some(read):
    (device,) = read(gpu(0, mig_mode=True, mig=[])).devices
    assert device.mig_mode
    assert "no MIG devices" in device.problem
    assert_plain(device.problem)


def test_a_mig_device_with_a_plain_name_gets_its_profile_from_its_size(read):
    plain = mig(0, name="NVIDIA H200", memory_total_bytes=16384 << 20, slices=1)
    assert read(gpu(0, mig=[plain], mig_mode=True)).devices[1].profile == "1g.18gb"


def test_a_broken_mig_device_leaves_its_neighbours_alone(read):
    parts = [mig(0), mig(1, errors={"nvmlDeviceGetUUID": 999}), mig(2)]
    devices = read(gpu(0, mig=parts, mig_mode=True)).devices
    assert [device.problem is None for device in devices] == [False, True, False, True]
    assert devices[2].uuid is None


def test_a_mig_device_of_someone_else_is_left_out(read):
    parts = [mig(0, errors={"nvmlDeviceGetMigDeviceHandleByIndex": 4}), mig(1)]
    devices = read(gpu(0, mig=parts, mig_mode=True)).devices
    assert [device.uuid for device in devices if device.kind == "mig"] == [mig(1)["uuid"]]


def test_the_parts_of_a_gpu_that_needs_a_reset_are_not_offered(read):
    broken = gpu(0, mig=[mig(0)], mig_mode=True, errors={"nvmlDeviceGetTemperature": 16})
    whole, part = read(broken).devices
    assert "needs a reset" in whole.problem
    assert "needs a reset" in part.problem


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA H200 MIG 1g.18gb", "1g.18gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "1c.3g.20gb"),
        ("NVIDIA A30 MIG 1g.6gb+me", "1g.6gb+me"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb+me.all", "1g.20gb+me.all"),
        ("NVIDIA H200", None),
        ("MIGHTY 1g.18gb", None),
    ],
)
def test_a_profile_is_read_from_a_mig_devices_name(name, profile):
    assert profile_of(name) == profile


@pytest.mark.parametrize(
    ("slices", "compute", "mebibytes", "whole_mebibytes", "profile"),
    [
        (1, 1, 16384, 143771, "1g.18gb"),
        (1, 1, 4864, 40536, "1g.5gb"),
        (2, 2, 9856, 40536, "2g.10gb"),
        (3, 1, 19968, 40536, "1c.3g.20gb"),
        (1, 1, 9728, 81251, "1g.10gb"),
        (7, 7, 80384, 81251, "7g.80gb"),
    ],
)
def test_a_profile_is_named_as_nvidia_names_it(
    slices, compute, mebibytes, whole_mebibytes, profile
):
    assert profile_from(slices, compute, mebibytes << 20, whole_mebibytes << 20) == profile


@pytest.mark.parametrize(
    ("content", "node"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("", None), (None, None)]
)
def test_the_numa_node_is_the_kernels_and_minus_one_is_unknown(tmp_path, content, node):
    if content is not None:
        (tmp_path / "0000:1b:00.0").mkdir()
        (tmp_path / "0000:1b:00.0" / "numa_node").write_text(content)
    assert numa_node("00000000:1B:00.0", tmp_path) == node
    assert numa_node(None, tmp_path) is None


def test_text_may_come_as_bytes_from_older_packages():
    assert Answer(b"NVIDIA H200").text == "NVIDIA H200"
    assert Answer("NVIDIA H200").text == "NVIDIA H200"
    assert Answer(b"\xff").text == "\N{REPLACEMENT CHARACTER}"
    assert Answer(None, 15).text is None


def test_a_machine_without_the_library_is_one_sentence(driver_double, tmp_path):
    nothing = tmp_path / "no-driver"
    nothing.mkdir()
    # An empty file rather than none, so that a driver of the host is not found either.
    (nothing / "libnvidia-ml.so.1").touch()
    with driver_double.reader(LD_LIBRARY_PATH=str(nothing)) as read:
        inventory = read()
    assert (inventory.source, inventory.devices) == ("none", ())
    assert "libnvidia-ml.so.1" in inventory.problem
    assert_plain(inventory.problem)


def test_a_missing_package_is_one_sentence(driver_double):
    code = """
import sys
sys.modules["pynvml"] = None
from jupyter_gpu.adapters.nvml import NVMLMachine
print(NVMLMachine().read())
"""
    assert "pip install nvidia-ml-py" in driver_double.python(code)


def test_a_shutdown_by_another_library_is_mended_within_the_read(driver_double):
    driver_double.write(gpu(0))
    code = """
import pynvml
from jupyter_gpu.adapters.nvml import NVMLMachine
with NVMLMachine() as machine:
    machine.read()
    pynvml.nvmlShutdown()
    print(machine.read().problem, len(machine.read().devices))
"""
    assert driver_double.python(code) == "None 1\n"


def test_closing_gives_back_exactly_what_was_opened(driver_double):
    driver_double.write(gpu(0))
    code = """
import pynvml
from jupyter_gpu.adapters.nvml import NVMLMachine
pynvml.nvmlInit()
with NVMLMachine() as machine:
    machine.read()
    machine.close()
    machine.close()
print(pynvml.nvmlDeviceGetCount())
pynvml.nvmlShutdown()
try:
    pynvml.nvmlDeviceGetCount()
except pynvml.NVMLError_Uninitialized:
    print("shut down")
"""
    assert driver_double.python(code) == "1\nshut down\n"


def test_the_deprecated_pynvml_package_beside_ours_stays_silent(driver_double):
    """That package warns from an import hook of its own, which -W error turns into a failure."""
    driver_double.write(gpu(0))
    code = """
import sys, warnings
from importlib.abc import MetaPathFinder
class Redirector(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pynvml":
            warnings.warn("The pynvml package is deprecated.", FutureWarning, stacklevel=2)
sys.meta_path.insert(0, Redirector())
from jupyter_gpu.adapters.nvml import NVMLMachine
print(len(NVMLMachine().read().devices))
try:
    warnings.warn("still an error", FutureWarning)
except FutureWarning:
    print("filters restored")
"""
    assert driver_double.python(code) == "1\nfilters restored\n"


def test_gpustats_changes_to_pynvml_in_the_same_process_do_no_harm(driver_double):
    driver_double.write(gpu(0, memory_used_bytes=11))
    code = """
import gpustat.nvml
from jupyter_gpu.adapters.nvml import NVMLMachine
device, = NVMLMachine().read().devices
print(device.memory_used_bytes, device.problem)
"""
    assert driver_double.python(code) == "11 None\n"


def test_an_older_package_without_a_function_counts_as_an_older_driver(driver_double):
    driver_double.write(gpu(0))
    code = """
import pynvml
del pynvml.nvmlDeviceGetMPSComputeRunningProcesses, pynvml.nvmlSystemGetCudaDriverVersion_v2
from jupyter_gpu.adapters.nvml import NVMLMachine
inventory = NVMLMachine().read()
print(inventory.cuda, inventory.devices[0].problem)
"""
    assert driver_double.python(code) == "None None\n"


def test_a_name_that_is_not_text_is_a_problem_and_no_traceback(driver_double):
    driver_double.write(gpu(0))
    code = """
import pynvml
def broken(handle):
    return b"\\xff".decode()
pynvml.nvmlDeviceGetName = broken
from jupyter_gpu.adapters.nvml import NVMLMachine
print(NVMLMachine().read().devices[0].problem)
"""
    assert driver_double.python(code).startswith("GPU 0 answers with an unknown error")


def test_threads_may_read_at_once(driver_double):
    driver_double.write(gpu(0), gpu(1))
    code = """
from concurrent.futures import ThreadPoolExecutor
from jupyter_gpu.adapters.nvml import NVMLMachine
with NVMLMachine() as machine, ThreadPoolExecutor(4) as pool:
    counts = list(pool.map(lambda _: len(machine.read().devices), range(40)))
print(set(counts))
"""
    assert driver_double.python(code) == "{2}\n"


def test_importing_the_adapter_loads_neither_pynvml_nor_a_library():
    code = "import sys, jupyter_gpu.adapters.nvml; print('pynvml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
