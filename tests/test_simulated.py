"""The simulated machine."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_gpu.adapters.simulated import SimulatedMachine
from jupyter_gpu.core.devices import Process
from jupyter_gpu.core.environment import numbering_is_cudas
from jupyter_gpu.core.errors import SimulationError


def read(description):
    with SimulatedMachine(str(description)) as machine:
        return machine.read()


@pytest.fixture
def described(tmp_path):
    """Write a description as a file and read the machine it describes."""

    def write(description):
        path = tmp_path / "machine.json"
        text = description if isinstance(description, str) else json.dumps(description)
        path.write_text(text, encoding="utf-8")
        return read(path)

    return write


def test_so_many_gpus_of_a_model():
    inventory = read("4xH200")
    assert (inventory.source, inventory.problem) == ("simulated", None)
    assert (inventory.driver, inventory.cuda) == ("580.95.05", "13.0")
    assert [device.index for device in inventory.devices] == [0, 1, 2, 3]
    assert {device.name for device in inventory.devices} == {"NVIDIA H200"}
    assert all(device.memory_used_bytes == 0 and not device.problem for device in inventory.gpus)


@pytest.mark.parametrize(
    ("description", "names"),
    [
        ("1xT4", ["Tesla T4"]),
        ("1XT4", ["Tesla T4"]),
        ("1×t4", ["Tesla T4"]),
        (" 1 x L4 ", ["NVIDIA L4"]),
        ("2xL4+1xRTX4090", ["NVIDIA L4", "NVIDIA L4", "NVIDIA GeForce RTX 4090"]),
    ],
)
def test_a_list_of_groups_is_one_machine(description, names):
    assert [device.name for device in read(description).devices] == names


def test_every_device_has_a_uuid_of_its_own_and_the_same_one_every_time():
    first, second = read("128xA100"), read("128xA100")
    assert len({device.uuid for device in first.devices}) == 128
    assert first == second
    assert read("2xH200").devices == read("4xH200").devices[:2]


def test_its_numbering_is_cudas():
    assert numbering_is_cudas(read("128xH100"))


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        ("4xPotato", "no model 'Potato'. Known: A10, "),
        ("0xH200", "1 to 128 GPUs can be simulated"),
        ("129xH200", "1 to 128 GPUs can be simulated"),
        ("100xH200+29xL4", "1 to 128 GPUs can be simulated"),
        ("H200", "neither a machine such as 4xH200 or 2xH200\\+1xL4 nor a file"),
        ("4xH200+", "nor a file"),
        ("/", "Is a directory"),
        ("~nobody-here/x.json", "Could not determine home directory"),
        ("x" * 9999, "too long"),
    ],
)
def test_a_description_that_cannot_be_read_says_why(description, sentence):
    with pytest.raises(SimulationError, match=sentence) as caught:
        read(description)
    assert str(caught.value).startswith("JUPYTER_GPU_SIMULATE=")


def test_a_file_describes_a_machine_in_every_detail(described):
    inventory = described(
        {
            "driver": "550.54.15",
            "gpus": [
                {
                    "uuid": "GPU-a",
                    "name": "NVIDIA A100",
                    "memory_total_bytes": 100,
                    "memory_used_bytes": 7,
                    "pci_bus_id": "00000000:3B:00.0",
                    "processes": [{"pid": 42, "memory_bytes": 5}, {"pid": 43}],
                    "links": {"1": "nvlink"},
                    "numa_node": 1,
                    "utilization_percent": 3,
                    "temperature_celsius": 40,
                    "power_watts": 70,
                    "exclusive": True,
                    "display": True,
                },
                {"name": "NVIDIA A100", "problem": "It is lost."},
            ],
        }
    )
    assert (inventory.driver, inventory.cuda) == ("550.54.15", "12.4")
    first, second = inventory.devices
    assert first.processes == (Process(42, 5), Process(43, None))
    assert (first.uuid, first.pci_bus_id, first.numa_node) == ("GPU-a", "00000000:3B:00.0", 1)
    assert (first.memory_free_bytes, first.power_watts) == (93, 70.0)
    assert first.exclusive
    assert first.display
    assert (second.problem, second.memory_total_bytes) == ("It is lost.", None)


def test_a_gpu_with_parts_is_in_mig_mode_and_its_parts_follow(described):
    parts = [{"profile": "1g.18gb", "memory_total_bytes": 5}, {"uuid": "MIG-b"}]
    inventory = described({"gpus": [{"name": "NVIDIA H200", "mig": parts}, {"name": "NVIDIA L4"}]})
    whole, one, other, last = inventory.devices
    assert whole.mig_mode
    assert "listed below it" in whole.problem
    assert (one.kind, one.parent, one.profile, one.index) == ("mig", whole.uuid, "1g.18gb", 0)
    assert other.uuid == "MIG-b"
    assert (last.kind, last.index) == ("gpu", 1)


def test_a_machine_without_gpus_says_so(described):
    assert described({"gpus": []}).problem == "The simulated machine has no GPU."


def test_an_unknown_driver_branch_has_no_known_cuda(described):
    assert described({"driver": "999.1", "gpus": [{"name": "x"}]}).cuda is None


def test_a_file_is_read_anew_every_time(tmp_path):
    path = tmp_path / "machine.json"
    path.write_text('{"gpus": [{"name": "a"}]}')
    machine = SimulatedMachine(str(path))
    assert machine.read().devices[0].name == "a"
    path.write_text('{"gpus": [{"name": "b"}]}')
    assert machine.read(sensors=False).devices[0].name == "b"


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        ("", "Expecting value"),
        ("[" * 100_000, "recursion|nested"),
        ([], "a JSON object with a list 'gpus'"),
        ({}, "'gpus' is a list of objects"),
        ({"gpus": [1]}, "'gpus' is a list of objects"),
        ({"gpus": [], "cpu": 1}, "the machine has an unknown key 'cpu'; known: driver, gpus"),
        ({"gpus": [], "driver": 580}, "'driver' is 580, not of type str"),
        ({"gpus": [{}]}, "GPU 0 has no name"),
        ({"gpus": [{"name": "a", "colour": 1}]}, "GPU 0 has an unknown key 'colour'"),
        ({"gpus": [{"name": "a", "memory_total_bytes": "1"}]}, "not of type int"),
        ({"gpus": [{"name": "a", "memory_total_bytes": True}]}, "not of type int"),
        ({"gpus": [{"name": "a", "uuid": "x"}, {"name": "b", "uuid": "x"}]}, "the same uuid"),
        ({"gpus": [{"name": "a", "processes": 3}]}, "'processes' is a list of objects"),
        ({"gpus": [{"name": "a", "processes": [{}]}]}, "a process has no pid"),
        ({"gpus": [{"name": "a", "processes": [{"pid": 1, "x": 1}]}]}, "a process has an unknown"),
        ({"gpus": [{"name": "a", "mig": [1]}]}, "'mig' is a list of objects"),
        ({"gpus": [{"name": "a", "mig": [{"x": 1}]}]}, "MIG device 0 of GPU 0 has an unknown key"),
    ],
)
def test_a_wrong_file_says_what_is_wrong_with_it(described, description, sentence):
    with pytest.raises(SimulationError, match=sentence):
        described(description)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "mig", "processes", "pid", "uuid"]), inner)
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({"gpus": st.lists(JSON, max_size=3)}, optional={"driver": JSON}))
def test_any_file_is_a_machine_or_a_simulation_error(described, description):
    try:
        inventory = described(description)
    except SimulationError:
        return
    assert inventory.source == "simulated"
