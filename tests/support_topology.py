"""Machines by the way their GPUs are connected, as the driver doubles take them and as values.

``data/topologies.json`` holds them: NVML's levels for each pair, where each GPU's NVLinks lead,
and the CPUs and memory nodes near it.
"""

import json
from itertools import combinations
from pathlib import Path

from doubles import gpu

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.topology import PATHS, Link, Place, Topology
from jupyter_gpu.core.visibility import visible

SHAPES = json.loads((Path(__file__).parent / "data" / "topologies.json").read_text())
INACTIVE = {"inactive": None}


def numbers(cpu_list):
    """The numbers that Linux writes as ``0-3,8``."""
    ends = (part.split("-") for part in cpu_list.split(","))
    return [number for end in ends for number in range(int(end[0]), int(end[-1]) + 1)]


def driver_gpus(name, **changes):
    """The GPUs of a shape as the doubles describe them."""
    shape = SHAPES[name]
    found = []
    for index, levels in enumerate(shape["levels"]):
        lanes = None
        if shape["nvlinks"] is not None:
            lanes = [
                INACTIVE.get(far, int(far) if far.isdigit() else far)
                for far, count in shape["nvlinks"][index].items()
                for _ in range(count)
            ]
        described = {
            "name": shape["model"],
            "ancestors": {str(far): level for far, level in enumerate(levels) if level is not None},
            "nvlinks": lanes,
            "cpus": numbers(shape["cpus"][index]),
            "memory_nodes": shape["nodes"][index],
        }
        found.append(gpu(index, **(described | changes)))
    return found


def topology_of(name):
    """The topology of a shape, put together without the driver."""
    shape = SHAPES[name]
    uuids = [gpu(index)["uuid"] for index in range(len(shape["levels"]))]
    places = tuple(
        Place(uuid, index, shape["nodes"][index][0], tuple(numbers(shape["cpus"][index])))
        for index, uuid in enumerate(uuids)
    )
    links = []
    for one, other in combinations(range(len(uuids)), 2):
        path = PATHS[shape["levels"][one][other] // 10]
        lanes = shape["nvlinks"][one] if shape["nvlinks"] else {}
        count = lanes.get(str(other), lanes.get("switch"))
        if count is None:
            links.append(Link(uuids[one], uuids[other], path, nvlink=False))
        else:
            switched = "switch" in lanes
            links.append(Link(uuids[one], uuids[other], path, True, count, switched))
    return Topology(places, tuple(links))


def overview_of(name, value=None):
    """What a kernel sees of a shape when CUDA_VISIBLE_DEVICES holds this value."""
    shape = SHAPES[name]
    devices = tuple(
        Device(index, gpu(index)["uuid"], shape["model"]) for index in range(len(shape["levels"]))
    )
    inventory = Inventory("nvml", "580.95.05", "13.0", None, devices)
    return Overview(inventory, visible(value, inventory))
