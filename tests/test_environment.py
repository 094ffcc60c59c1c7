"""What the kernel gets."""

import dataclasses

import pytest

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.environment import (
    merged,
    numbering_is_cudas,
    remembered_caps,
    variables,
    visible_value,
    without_caps,
)
from jupyter_gpu.core.variables import CAPS

GPUS = tuple(
    Device(i, f"GPU-{i:02}", "NVIDIA H200", pci_bus_id=f"00000000:{bus}:00.0")
    for i, bus in enumerate(("18", "2A", "5E"))
)
MIG = Device(0, "MIG-a", "NVIDIA H200 MIG", kind="mig", parent="GPU-00")
PLAIN = Inventory("nvml", devices=GPUS)


def machine(**changes):
    """The plain machine with facts of GPU 1 changed."""
    return Inventory("nvml", devices=(GPUS[0], dataclasses.replace(GPUS[1], **changes), GPUS[2]))


@pytest.mark.parametrize(
    ("inventory", "provable"),
    [
        (PLAIN, True),
        (Inventory("nvml"), True),
        (dataclasses.replace(PLAIN, problem="The driver was updated."), False),
        (machine(problem="lost"), False),
        (machine(mig_mode=True), False),
        (machine(pci_bus_id=None), False),
        (machine(pci_bus_id="00000000:01:00.0"), False),
        (machine(index=7), False),
        (Inventory("nvml", devices=GPUS[1:]), False),
    ],
)
def test_indices_are_used_only_where_they_are_provably_cudas_own(inventory, provable):
    assert numbering_is_cudas(inventory) == provable


@pytest.mark.parametrize(
    ("devices", "inventory", "identifiers", "value"),
    [
        ((), PLAIN, "auto", "-1"),
        (GPUS[:1], PLAIN, "auto", "0"),
        ((GPUS[2], GPUS[0]), PLAIN, "auto", "2,0"),
        ((GPUS[2], GPUS[0]), PLAIN, "uuid", "GPU-02,GPU-00"),
        ((GPUS[2],), machine(problem="lost"), "auto", "GPU-02"),
        ((GPUS[2],), machine(problem="lost"), "index", "2"),
        ((MIG,), PLAIN, "auto", "MIG-a"),
        ((MIG,), PLAIN, "index", "MIG-a"),
    ],
)
def test_the_value_means_exactly_these_devices(devices, inventory, identifiers, value):
    assert visible_value(devices, inventory, identifiers) == value


def test_frameworks_are_kept_from_taking_all_the_memory():
    assert variables(GPUS[:1], PLAIN, "auto", {}) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def test_what_the_person_has_set_for_a_framework_is_left_alone():
    theirs = {"TF_FORCE_GPU_ALLOW_GROWTH": "false", "XLA_PYTHON_CLIENT_PREALLOCATE": ""}
    assert variables(GPUS[:1], PLAIN, "auto", theirs).keys() == {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
    }


def test_no_device_means_that_none_is_visible():
    assert variables((), PLAIN, "auto", {}) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "-1",
    }


class TestCaps:
    """Variables that cap a share, which are taken away again with it."""

    def environ(self, before, caps):
        granted = {**caps, CAPS: remembered_caps(before, caps)}
        return merged(before, granted)

    def test_what_stood_there_before_comes_back(self):
        before = {"A": "mine", "OTHER": "1"}
        inside = self.environ(before, {"A": "capped", "B": "capped"})
        assert (inside["A"], inside["B"]) == ("capped", "capped")
        assert without_caps(inside) == before

    def test_what_the_person_has_set_since_stays(self):
        inside = self.environ({"A": "mine"}, {"A": "capped", "B": "capped"})
        inside |= {"A": "new", "OTHER": "1"}
        assert without_caps(inside) == {"A": "new", "OTHER": "1"}

    def test_new_caps_replace_all_of_the_old(self):
        before = {"A": "mine"}
        inside = self.environ(before, {"A": "half", "B": "half"})
        granted = {"A": "quarter", CAPS: remembered_caps(before, {"A": "quarter"})}
        assert merged(inside, granted) == {**before, **granted}
        assert merged(inside, {"X": "1"}) == {**inside, "X": "1"}

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", "3", '{"A": 1}', '{"A": []}', '{"A": ["x"]}', '{"A": null}']
    )
    def test_what_cannot_be_read_changes_nothing_else(self, text):
        assert without_caps({"A": "x", CAPS: text}) == {"A": "x"}
