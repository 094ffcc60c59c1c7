"""The checks of the machine: its driver, NVML, the CUDA driver itself, and each GPU."""

import dataclasses

import pytest
from support_cli import device, inventory, overview, uuid

from jupyter_gpu.core import nvml_words
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.driver_checks import machine_checks
from jupyter_gpu.core.facts import DriverAnswer, Facts
from jupyter_gpu.core.visibility import visible


def digits(*names):
    return tuple(name.partition("-")[2].replace("-", "") for name in names)


def checks(machine, answer=None, *, value=None, environ=None, confined=False, **facts):
    seen = dataclasses.replace(
        overview(machine), visible=visible(value, machine, environment=environ or {})
    )
    found = list(machine_checks(seen, Facts(driver=answer, **facts), confined=confined))
    for check in found:
        assert (check.fix is None) == (check.status == "ok"), check
    return found


def one(name, *arguments, **options):
    (found,) = [check for check in checks(*arguments, **options) if check.name == name]
    return found


def test_a_sound_machine_is_said_once():
    answer = DriverAnswer(cuinit=0, uuids=digits(*map(uuid, range(4))))
    found = checks(inventory(), answer)
    assert [(check.name, check.status) for check in found] == [
        ("driver", "ok"),
        ("NVML", "ok"),
        ("CUDA driver", "ok"),
    ]
    assert found[0].found == "NVIDIA 580.159.04, CUDA 13.0"
    assert "shows a fresh process 4 devices" in found[2].found
    assert "NVML lists 4 GPUs" in found[2].found


@pytest.mark.parametrize(
    ("machine", "name", "status", "words"),
    [
        pytest.param(
            Inventory("none", problem=nvml_words.machine_problem(12)),
            ("driver"), "warn", "libnvidia-ml.so.1", id="B106",
        ),
        pytest.param(
            Inventory("nvml", problem=nvml_words.machine_problem(18)),
            ("NVML"), "fail", "updated while the old one is still running", id="B105",
        ),
        pytest.param(
            Inventory("nvml", problem=nvml_words.machine_problem(999)),
            ("NVML"), "fail", "container that lost its GPUs", id="B101",
        ),
        pytest.param(
            Inventory("none", problem=nvml_words.NO_PACKAGE), "NVML", "warn", "nvidia-ml-py",
            id="B112",
        ),
        (Inventory("none", problem="Not a simulation"), "driver", "fail", "Not a simulation"),
    ],
)  # fmt: skip
def test_where_nothing_can_be_read_the_reason_and_the_remedy_are_said(machine, name, status, words):
    check = one(name, machine)
    assert (check.status, words in check.found) == (status, True)
    assert check.fix


def test_the_kernels_module_is_named_where_nvml_does_not_match_it():
    broken = Inventory("nvml", problem=nvml_words.machine_problem(18))
    assert "module is 570.86" in one("NVML", broken, kernel_module="570.86").found


@pytest.mark.parametrize(("confined", "status"), [(True, "ok"), (False, "warn")])
def test_b92_a_hidden_gpu_is_noted_and_in_a_job_nothing_is_wrong(confined, status):
    machine = inventory(*map(device, range(3)), problem=nvml_words.hidden_problem(1, 4))
    check = one("NVML", machine, confined=confined)
    assert check.status == status
    assert check.found.startswith("lists 3 GPUs; 1 of 4 GPUs is hidden")


def test_a_simulated_machine_has_no_driver_to_ask():
    found = checks(inventory(source="simulated"))
    assert [check.status for check in found] == ["ok", "ok"]
    assert "simulated" in found[1].found


class TestCUDADriver:
    """What a fresh process gets, beside what NVML lists and what the rules say."""

    @pytest.mark.parametrize(
        ("answer", "status", "words"),
        [
            (DriverAnswer(found=False), "fail", "no libcuda.so.1, though NVML lists 4 GPUs"),
            (DriverAnswer(problem="it was ended by signal 11 (SIGSEGV)"), "fail", "SIGSEGV"),
            (DriverAnswer(), "fail", "no answer"),
            (DriverAnswer(cuinit=803), "fail", "cuInit 803: the driver's library"),
            (DriverAnswer(cuinit=100), "fail", "cuInit 100: no GPU; NVML lists 4 GPUs"),
            (DriverAnswer(cuinit=31337), "fail", "cuInit 31337"),
        ],
    )
    def test_a_driver_that_gives_nothing_is_a_failure(self, answer, status, words):
        check = one("CUDA driver", inventory(), answer)
        assert (check.status, words in check.found) == (status, True)

    @pytest.mark.parametrize(("value", "code"), [("-1", 100), ("0,0", 101), ("", 100)])
    def test_b61_nothing_is_wrong_where_the_variable_says_so(self, value, code):
        check = one("CUDA driver", inventory(), DriverAnswer(cuinit=code), value=value)
        assert check.status == "ok"
        assert "CUDA_VISIBLE_DEVICES" in check.found

    @pytest.mark.parametrize("answer", [DriverAnswer(found=False), DriverAnswer(cuinit=100)])
    def test_a_machine_without_gpus_is_in_order(self, answer):
        empty = Inventory("nvml", "580.159.04", "13.0", problem=nvml_words.NO_GPU)
        assert one("CUDA driver", empty, answer).status == "ok"

    def test_the_map_is_the_drivers(self):
        answer = DriverAnswer(cuinit=0, uuids=digits(uuid(3), uuid(1)))
        check = one("CUDA driver", inventory(), answer, value="3,1")
        assert check.status == "ok"
        assert "cuda:0 = physical 3, cuda:1 = physical 1" in check.found

    def test_b28_another_order_is_the_variables_fault(self):
        machine = inventory(device(0, name="NVIDIA T4"), device(1, name="NVIDIA H200"))
        answer = DriverAnswer(cuinit=0, uuids=digits(uuid(1)))
        check = one("CUDA driver", machine, answer, value="0", environ={"CUDA_DEVICE_ORDER": "X"})
        assert check.status == "warn"
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in check.fix

    def test_b99_an_interposed_driver_is_believed(self):
        answer = DriverAnswer(cuinit=0, uuids=digits(uuid(0)))
        check = one("CUDA driver", inventory(), answer, value="1")
        assert check.status == "warn"
        assert "cuda:0 = physical 0" in check.found
        assert "the variable means physical 1" in check.found
        assert "believe the CUDA driver" in check.fix

    def test_b92_a_device_that_nvml_hides_is_said_to_be_one(self):
        answer = DriverAnswer(cuinit=0, uuids=(*digits(*map(uuid, range(4))), "f" * 32))
        assert "a device that NVML does not list" in one("CUDA driver", inventory(), answer).found

    def test_without_nvml_the_drivers_word_is_all_there_is(self):
        broken = Inventory("nvml", problem=nvml_words.machine_problem(18))
        answer = DriverAnswer(cuinit=0, uuids=("f" * 32,))
        assert one("CUDA driver", broken, answer).status == "ok"


class TestMIG:
    """Never a promise of more than one part."""

    PARTS = ("MIG-1111", "MIG-2222", "MIG-3333")

    @pytest.fixture
    def machine(self):
        def part(name):
            return Device(
                1, f"{name}-5d9e-4a86-9c04-71e6a3d8f25b", "NVIDIA H200 MIG", kind="mig",
                parent=uuid(1), profile="1g.18gb",
            )  # fmt: skip

        split = device(1, mig_mode=True, problem=nvml_words.mig_problem(1, 3))
        return inventory(device(0), split, *map(part, self.PARTS))

    def names(self, machine):
        return [one.uuid for one in machine.devices if one.kind == "mig"]

    def test_b53_how_many_a_process_gets_only_the_driver_says(self, machine):
        check = one("MIG", machine)
        assert check.status == "ok"
        assert "GPU 1 is split in 3" in check.found
        assert "one of them for certain" in check.found

    def test_b60_the_two_counts_stand_side_by_side(self, machine):
        check = one("CUDA driver", machine, DriverAnswer(cuinit=0, uuids=digits(uuid(0))))
        assert check.status == "ok"
        assert "shows a fresh process 1 device" in check.found
        assert "NVML lists 2 GPUs and 3 MIG devices" in check.found

    @pytest.mark.parametrize("given", [1, 2])
    def test_any_number_of_the_parts_that_a_list_names_is_right(self, machine, given):
        named = self.names(machine)[:2]
        answer = DriverAnswer(cuinit=0, uuids=digits(*named[:given]))
        assert one("CUDA driver", machine, answer, value=",".join(named)).status == "ok"

    def test_another_part_is_not(self, machine):
        named = self.names(machine)
        answer = DriverAnswer(cuinit=0, uuids=digits(named[2]))
        assert one("CUDA driver", machine, answer, value=named[0]).status == "warn"

    def test_a_mode_without_parts_is_a_warning_with_what_makes_some(self):
        empty = inventory(device(0, mig_mode=True, problem=nvml_words.mig_problem(0, 0)))
        check = one("MIG", empty)
        assert check.status == "warn"
        assert "nvidia-smi mig -cgi" in check.fix


def test_b107_a_lost_gpu_is_said_with_what_to_do():
    machine = inventory(device(0), device(1, problem=nvml_words.gpu_problem(1, 15)))
    check = one("GPU 1", machine)
    assert (check.status, check.found) == ("warn", "GPU 1 is lost: it has fallen off the bus")
    assert "reboot" in check.fix


def test_b78_an_exclusive_compute_mode_is_said_with_what_ends_it():
    check = one("GPU 1", inventory(device(0), device(1, exclusive=True)))
    assert check.status == "warn"
    assert check.fix == "sudo nvidia-smi -i 1 -c DEFAULT"
