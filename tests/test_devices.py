"""The nouns of the inventory."""

import dataclasses

import pytest

from jupyter_gpu.core.devices import Device, Inventory

GPU = Device(0, "GPU-a", "NVIDIA H200", memory_total_bytes=100, memory_used_bytes=30)
MIG = Device(0, "MIG-b", "NVIDIA H200 MIG 1g.18gb", kind="mig", parent="GPU-a")


def test_free_memory_is_what_is_not_used():
    assert GPU.memory_free_bytes == 70


@pytest.mark.parametrize("unknown", ["memory_total_bytes", "memory_used_bytes"])
def test_free_memory_is_unknown_where_a_part_is_unknown(unknown):
    assert dataclasses.replace(GPU, **{unknown: None}).memory_free_bytes is None


def test_an_inventory_lists_gpus_apart_from_their_parts():
    inventory = Inventory("simulated", devices=(GPU, MIG))
    assert inventory.gpus == (GPU,)


def test_a_device_is_found_by_exactly_its_uuid():
    inventory = Inventory("simulated", devices=(GPU, MIG))
    assert inventory.find("MIG-b") is MIG
    assert inventory.find("MIG-") is None
    assert inventory.find("mig-b") is None


def test_devices_are_values():
    assert dataclasses.replace(GPU) == GPU
    with pytest.raises(dataclasses.FrozenInstanceError):
        GPU.index = 3
