"""The doubles behave as the driver does, and real programs run over them."""

import json
import os
import sys
from pathlib import Path

import pytest
from doubles import DriverDouble, build, gpu, mig
from doubles.fixtures import driver_double, driver_libraries, old_driver_libraries

__all__ = ["driver_double", "driver_libraries", "old_driver_libraries"]

TABLE = json.loads((Path(__file__).parent / "data" / "driver_visibility.json").read_text())

# One forked process a value, since a process reads CUDA_VISIBLE_DEVICES once.
READ_VALUES = """
import ctypes, json, os, sys, uuid
def devices(cuda):
    count = ctypes.c_int()
    if cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for ordinal in range(count.value):
        raw = (ctypes.c_ubyte * 16)()
        assert cuda.cuDeviceGetUuid_v2(raw, ordinal) == 0
        found.append(str(uuid.UUID(bytes=bytes(raw))))
    return found
def answer(environment):
    os.environ.update(environment)
    cuda = ctypes.CDLL("libcuda.so.1")
    code = cuda.cuInit(0)
    return [code, devices(cuda)]
answers = []
for environment in json.load(sys.stdin):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, json.dumps(answer(environment)).encode())
        os._exit(0)
    os.close(write_end)
    with open(read_end) as pipe:
        answers.append(json.load(pipe))
    os.waitpid(pid, 0)
print(json.dumps(answers))
"""


def in_force(double, *environments):
    """Return (cuInit's code, physical indices or UUIDs in visible order) for each environment."""
    answers = json.loads(double.python(READ_VALUES, stdin=json.dumps(environments)))
    return [(code, tuple(uuids)) for code, uuids in answers]


def digits(*described):
    """The UUIDs as cuDeviceGetUuid_v2 gives them: without the prefix."""
    return tuple(one["uuid"].partition("-")[2] for one in described)


def test_libcuda_reads_every_value_as_the_measured_driver_does(driver_double):
    driver_double.write(*(gpu(index, uuid=uuid) for index, uuid in enumerate(TABLE["uuids"])))
    environments = [
        {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": row["value"]}
        for row in TABLE["rows"]
    ]
    names = [uuid.removeprefix("GPU-") for uuid in TABLE["uuids"]]
    answers = in_force(driver_double, *environments)
    assert len(answers) == len(TABLE["rows"]) > 70
    for row, (code, uuids) in zip(TABLE["rows"], answers, strict=True):
        found = [names.index(uuid) for uuid in uuids]
        assert (code, found) == (row["cuInit"], row["devices"]), row["value"]


def test_without_the_variable_every_gpu_is_visible(driver_double):
    driver_double.write(gpu(0), gpu(1), gpu(2))
    assert in_force(driver_double, {}) == [(0, digits(gpu(0), gpu(1), gpu(2)))]


def test_cudas_own_order_puts_the_fastest_gpu_first(driver_double):
    driver_double.write(gpu(0, speed=1), gpu(1, speed=5))
    assert in_force(
        driver_double,
        {},
        {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    ) == [
        (0, digits(gpu(1), gpu(0))),
        (0, digits(gpu(0), gpu(1))),
        (0, digits(gpu(1))),
        (0, digits(gpu(0))),
    ]


def test_mig_devices_are_named_by_uuid_or_by_the_older_form(driver_double):
    split = gpu(1, mig_mode=True, mig=[mig(0), mig(2)])
    driver_double.write(gpu(0), split)
    values = [
        mig(2)["uuid"],
        f"MIG-{split['uuid']}/3/0",
        f"MIG-{split['uuid']}/9/0",
        gpu(0)["uuid"].replace("GPU-", "MIG-"),
        split["uuid"],
        "1",
    ]
    environments = [{"CUDA_VISIBLE_DEVICES": value} for value in values]
    assert in_force(driver_double, {}, *environments) == [
        (0, digits(gpu(0))),
        (0, digits(mig(2))),
        (0, digits(mig(2))),
        (100, ()),
        (0, digits(gpu(0))),
        (100, ()),
        (100, ()),
    ]


def test_gpus_behind_a_lost_one_move_up(driver_double):
    driver_double.write(gpu(0), gpu(1, errors={"*": 15}), gpu(2))
    ones = [{"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "2"}]
    assert in_force(driver_double, *ones) == [(0, digits(gpu(2))), (100, ())]


def test_a_driver_without_gpus_or_told_to_fail_does_not_initialise(driver_double):
    driver_double.write()
    assert in_force(driver_double, {}) == [(100, ())]
    driver_double.write(gpu(0), errors={"cuInit": 999})
    assert in_force(driver_double, {}) == [(999, ())]


def test_counting_devices_tells_open_from_frozen_and_a_frozen_driver_reads_no_more(driver_double):
    driver_double.write(gpu(0), gpu(1))
    code = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int(-1)
print(cuda.cuDeviceGetCount(ctypes.byref(count)), end=" ")
os.environ["CUDA_VISIBLE_DEVICES"] = "7"
print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), end=" ")
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value, end=" ")
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value)
"""
    assert driver_double.python(code) == "3 100 3 0 0 1 0 0 1\n"


def test_a_fork_of_an_initialised_process_can_never_use_cuda(driver_double):
    driver_double.write(gpu(0))
    code = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
assert cuda.cuInit(0) == 0
def state():
    return cuda.cuDeviceGetCount(ctypes.byref(count)), cuda.cuInit(0)
pid = os.fork()
if pid == 0:
    os.write(1, repr((state(), state())).encode())
    os._exit(0)
os.waitpid(pid, 0)
print(state())
"""
    assert driver_double.python(code) == "((3, 3), (3, 3))(0, 0)\n"


def test_a_fork_of_an_open_process_initialises_on_its_own(driver_double):
    driver_double.write(gpu(0))
    assert in_force(driver_double, {}, {}) == [(0, digits(gpu(0)))] * 2


def test_the_context_state_shows_which_device_is_used(driver_double):
    driver_double.write(gpu(0), gpu(1))
    code = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def active(ordinal):
    flags, state = ctypes.c_uint(), ctypes.c_int(-1)
    code = cuda.cuDevicePrimaryCtxGetState(ordinal, ctypes.byref(flags), ctypes.byref(state))
    return code, state.value
print(active(0), end=" ")
cuda.cuInit(0)
context = ctypes.c_void_p()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1)
print(active(0), active(1), active(2))
"""
    assert driver_double.python(code) == "(3, -1) (0, 0) (0, 1) (101, -1)\n"


def test_the_first_uuid_function_names_the_whole_gpu_of_a_mig_device(driver_double):
    driver_double.write(gpu(0, mig_mode=True, mig=[mig(0)]))
    code = """
import ctypes, uuid
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
for name in ("cuDeviceGetUuid", "cuDeviceGetUuid_v2"):
    raw = (ctypes.c_ubyte * 16)()
    getattr(cuda, name)(raw, 0)
    print(uuid.UUID(bytes=bytes(raw)))
name, version = ctypes.create_string_buffer(100), ctypes.c_int()
cuda.cuDeviceGetName(name, 100, 0)
cuda.cuDriverGetVersion(ctypes.byref(version))
print(name.value.decode(), version.value)
"""
    whole, part = digits(gpu(0), mig(0))
    assert driver_double.python(code) == f"{whole}\n{part}\nNVIDIA H200 MIG 1g.18gb 13000\n"


def test_nvidia_ml_py_reads_every_struct_at_its_own_size(driver_double):
    driver_double.write(
        gpu(0, memory_used_bytes=3 << 30, processes=[{"pid": 4, "memory_bytes": 5}])
    )
    code = """
import ctypes, pynvml as n
n.nvmlInit()
handle = n.nvmlDeviceGetHandleByIndex(0)
for version, struct in ((n.nvmlMemory_v2, n.c_nvmlMemory_v2_t),
                        (n.nvmlTemperature_v1, n.c_nvmlTemperature_v1_t),
                        (n.nvmlProcessDetailList_v1, n.c_nvmlProcessDetailList_v1_t)):
    assert version & 0xFFFFFF == ctypes.sizeof(struct)
memory = n.nvmlDeviceGetMemoryInfo(handle, n.nvmlMemory_v2)
print(memory.used >> 30, memory.used + memory.free + memory.reserved == memory.total)
print(n.nvmlDeviceGetMemoryInfo(handle).used - memory.used)
print(n.nvmlDeviceGetPciInfo(handle).busId, n.nvmlDeviceGetPciInfo(handle).bus)
print(n.nvmlDeviceGetTemperatureV(handle, 0), n.nvmlDeviceGetTemperature(handle, 0))
for processes in (n.nvmlDeviceGetComputeRunningProcesses(handle),
                  n.nvmlDeviceGetComputeRunningProcesses_v2(handle)):
    print([(one.pid, one.usedGpuMemory, one.gpuInstanceId) for one in processes])
"""
    assert driver_double.python(code).splitlines() == [
        "3 True",
        "645000000",
        "00000000:1B:00.0 27",
        "31 31",
        "[(4, 5, 4294967295)]",
        "[(4, 5, 4294967295)]",
    ]


def test_a_struct_of_another_version_is_refused(driver_double):
    driver_double.write(gpu(0))
    code = """
import pynvml as n
n.nvmlInit()
handle = n.nvmlDeviceGetHandleByIndex(0)
for version in (0, 2, 0x01000028, 0x02000020, 0x02000028):
    try:
        n.nvmlDeviceGetMemoryInfo(handle, version)
        print("accepted")
    except n.NVMLError as error:
        print(error.value)
"""
    # Version 0 asks nvidia-ml-py for the first function, which has no version.
    assert driver_double.python(code).split() == ["accepted", "25", "25", "25", "accepted"]


def test_nvml_finds_by_exact_uuid_only_and_not_past_a_lost_gpu(driver_double):
    driver_double.write(gpu(0), gpu(1, errors={"*": 15}), gpu(2))
    code = """
import sys, pynvml as n
n.nvmlInit()
for uuid in sys.stdin.read().split():
    try:
        print(n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(uuid)), end=" ")
    except n.NVMLError as error:
        print(error.value, end=" ")
"""
    first = gpu(0)["uuid"]
    asked = [first, first[4:], first[:12], first.upper(), gpu(2)["uuid"]]
    assert driver_double.python(code, stdin=" ".join(asked)).split() == ["0", "0", "15", "15", "15"]
    driver_double.write(gpu(0), gpu(2))
    assert driver_double.python(code, stdin=" ".join(asked)).split() == ["0", "0", "6", "6", "1"]


def test_all_three_ways_to_start_nvml_work_and_are_counted(driver_double):
    driver_double.write(gpu(0))
    code = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
count = ctypes.c_uint()
ask = lambda: nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
print(ask(), nvml.nvmlInit(), nvml.nvmlInit_v2(), nvml.nvmlInitWithFlags(0), ask())
print([nvml.nvmlShutdown() for _ in range(4)], ask())
"""
    assert driver_double.python(code) == "1 0 0 0 0\n[0, 0, 0, 1] 1\n"


def test_a_change_of_the_file_shows_at_the_next_call(driver_double):
    driver_double.write(gpu(0), gpu(1))
    code = """
import sys, pynvml as n
n.nvmlInit()
handle = n.nvmlDeviceGetHandleByIndex(1)
print(n.nvmlDeviceGetName(handle))
path, text = sys.argv[1:]
open(path, "w").write(text)
print(n.nvmlDeviceGetCount())
try:
    n.nvmlDeviceGetName(handle)
except n.NVMLError_GpuIsLost:
    print("unplugged")
"""
    text = json.dumps({"gpus": [gpu(0)]})
    printed = driver_double.run(sys.executable, "-c", code, str(driver_double.path), text)
    assert printed.split("\n")[:3] == ["NVIDIA H200", "1", "unplugged"]


def test_delays_and_missing_functions_are_as_written(driver_double):
    driver_double.write(
        gpu(0), delays_ms={"nvmlDeviceGetPowerUsage": 40}, missing=["nvmlDeviceGetMemoryInfo_v2"]
    )
    code = """
import time, pynvml as n
n.nvmlInit()
handle = n.nvmlDeviceGetHandleByIndex(0)
start = time.perf_counter()
n.nvmlDeviceGetPowerUsage(handle)
print(time.perf_counter() - start >= 0.04)
try:
    n.nvmlDeviceGetMemoryInfo(handle, n.nvmlMemory_v2)
except n.NVMLError_FunctionNotFound:
    print("missing")
"""
    assert driver_double.python(code) == "True\nmissing\n"


def test_an_old_driver_does_not_export_the_newer_functions(old_driver_libraries, tmp_path):
    double = DriverDouble(old_driver_libraries, tmp_path / "machine.json").write(gpu(0))
    code = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
for name in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2",
             "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3"):
    print(hasattr(nvml, name), end=" ")
"""
    assert double.python(code).split() == ["True", "False", "True", "False"]


def test_without_a_file_there_is_no_driver(driver_libraries, tmp_path):
    nowhere = DriverDouble(driver_libraries, tmp_path / "absent.json")
    code = """
import ctypes
print(ctypes.CDLL("libnvidia-ml.so.1").nvmlInit(), ctypes.CDLL("libcuda.so.1").cuInit(0))
"""
    assert nowhere.python(code) == "9 100\n"


@pytest.mark.parametrize("text", ["", "{", "[", '{"gpus": [{"uuid": "GPU-', "nonsense", '"\\'])
def test_a_broken_file_is_a_machine_without_gpus_and_no_crash(driver_double, text):
    driver_double.path.write_text(text)
    code = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
print(nvml.nvmlInit(), ctypes.CDLL("libcuda.so.1").cuInit(0))
"""
    assert driver_double.python(code).split()[0] in {"0", "9"}


def test_names_outside_ascii_and_escapes_survive_the_file(driver_double):
    driver_double.write(gpu(0, name='Träge "H200" \\ \t1'))
    code = """
import pynvml as n
n.nvmlInit()
print(ascii(n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(0))))
"""
    assert driver_double.python(code).strip() == ascii('Träge "H200" \\ \t1')


def test_gpustat_runs_over_the_double(driver_double):
    running = [{"pid": os.getpid(), "memory_bytes": 6 << 20}]
    driver_double.write(
        gpu(0, utilization_percent=42, processes=running), gpu(1, memory_used_bytes=5 << 30)
    )
    first, second = json.loads(driver_double.run(sys.executable, "-m", "gpustat", "--json"))["gpus"]
    assert (first["uuid"], first["utilization.gpu"]) == (gpu(0)["uuid"], 42)
    assert first["processes"][0]["pid"] == os.getpid()
    assert first["processes"][0]["gpu_memory_usage"] == 6
    assert (second["index"], second["memory.used"]) == (1, 5 << 10)


def test_nvitop_runs_over_the_double_and_asks_libcuda_what_is_visible(driver_double):
    # Without a gap between the slots: nvitop stops at the first empty one.
    split = gpu(1, mig_mode=True, mig=[mig(0), mig(1)])
    driver_double.write(gpu(0, utilization_percent=7), split, gpu(2))
    code = """
from nvitop import Device
for device in Device.all():
    print(device.index, device.name(), device.gpu_utilization(), len(device.mig_devices()))
print([device.uuid() for device in Device.from_cuda_visible_devices()])
"""
    printed = driver_double.run(
        sys.executable, "-c", code, CUDA_VISIBLE_DEVICES="1,0", CUDA_DEVICE_ORDER="PCI_BUS_ID"
    )
    assert printed.splitlines() == [
        "0 NVIDIA H200 7 0",
        "1 NVIDIA H200 0 2",
        "2 NVIDIA H200 0 0",
        str([gpu(2)["uuid"], gpu(0)["uuid"]]),
    ]


def test_nvitop_prints_its_table_over_the_double(driver_double):
    driver_double.write(gpu(0, utilization_percent=37))
    printed = driver_double.run(sys.executable, "-m", "nvitop", "-1", "--ascii", "--no-unicode")
    assert "Driver Version: 580.95.05" in printed
    assert "37%" in printed


def test_torch_counts_over_the_double_what_the_variable_lets_it_see(driver_double):
    pytest.importorskip("torch")
    driver_double.write(gpu(0), gpu(1), gpu(2))
    code = """
import os, torch.cuda as cuda
print(cuda._raw_device_count_nvml(), cuda._device_count_nvml(), *cuda._raw_device_uuid_nvml())
os.environ["CUDA_VISIBLE_DEVICES"] = "GPU-cccc"
print(cuda._device_count_nvml(), cuda._get_nvml_device_index(0))
# Only a CUDA build counts at all; what a CPU build lacks is the one function that says so.
cuda._is_compiled = lambda: True
print(cuda.device_count())
"""
    printed = driver_double.run(sys.executable, "-c", code, CUDA_VISIBLE_DEVICES="2,0")
    uuids = " ".join(gpu(index)["uuid"] for index in range(3))
    assert printed.splitlines() == [f"3 2 {uuids}", "1 2", "1"]


def test_without_a_compiler_the_doubles_are_skipped_but_never_in_ci(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no C compiler"):
        build(tmp_path / "skipped")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no C compiler"):
        build(tmp_path / "failed")
