import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_topology import SHAPES, overview_of, topology_of

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.kernel_process import InForce, KernelProcess
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.render_html import as_html
from jupyter_gpu.core.render_text import as_text
from jupyter_gpu.core.topology import PATHS, Link, Place, Topology
from jupyter_gpu.core.topology_view import topology_answer, topology_view
from jupyter_gpu.core.visibility import visible


def text_of(name, value=None):
    return as_text(topology_view(overview_of(name, value), topology_of(name)))


def machine(count, links=(), *, cpus=None, model="NVIDIA H200"):
    """A machine of so many GPUs, with these links, all visible."""
    devices = tuple(Device(n, f"GPU-{n:08x}", model) for n in range(count))
    inventory = Inventory("nvml", "580.95.05", "13.0", None, devices)
    places = tuple(Place(device.uuid, device.index, 0, cpus) for device in devices)
    return Overview(inventory, visible(None, inventory)), Topology(places, tuple(links))


def everywhere(count, **link):
    names = [f"GPU-{n:08x}" for n in range(count)]
    return [Link(one, two, **link) for n, two in enumerate(names) for one in names[:n]]


def fits(text):
    return all(len(line) <= 80 for line in text.split("\n"))


def test_eight_gpus_on_a_switch():
    text = text_of("eight on NVSwitch", "3,5")
    lines = text.split("\n")
    assert lines[0].startswith("This kernel's 2 GPUs: joined by NVLink")
    assert "  GPU         0     1     2     3     4     5     6     7" in lines
    assert "  3 = cuda:0  NV18  NV18  NV18  X     NV18  NV18  NV18  NV18" in lines
    assert "  5 = cuda:1  NV18  NV18  NV18  NV18  NV18  X     NV18  NV18" in lines
    assert "  7           NV18  NV18  NV18  NV18  NV18  NV18  NV18  X" in lines
    assert "  0          0-3   0-51, 104-155" in lines
    assert "NV18: NVLink, 18 links through a switch" in text
    assert fits(text)


def test_two_pairs():
    text = text_of("two NVLink pairs")
    assert text.startswith("4 GPUs: NVLink between some pairs")
    assert "  0 = cuda:0  X     NV12  SYS   SYS" in text
    assert "NV12: NVLink, 12 links\n" in text
    assert "SYS: through the link between CPUs" in text
    assert "  1          2-3   1, 3, 5 … 63" in text
    assert text_of("two NVLink pairs", "1,2").startswith("This kernel's 2 GPUs: no NVLink")


def test_eight_on_pcie_have_a_line_for_each_kind_the_nearest_first():
    text = text_of("eight on PCIe")
    assert text.startswith("8 GPUs: no NVLink, only PCIe")
    places = [text.index(f"\n{name}: ") for name in ("PIX", "PXB", "NODE", "SYS")]
    assert places == sorted(places)
    assert "\nPHB: " not in text


def test_one_gpu_has_no_links_and_still_a_place():
    view = topology_view(overview_of("one GPU"), topology_of("one GPU"))
    text = as_text(view)
    assert text.startswith("1 GPU: there is no other to connect it with")
    assert "  0          0     0-15" in text
    assert view.drawing == ""


def test_without_a_gpu_the_view_says_why():
    overview = overview_of("no GPU")
    problem = "The driver is not loaded."
    inventory = dataclasses.replace(overview.inventory, problem=problem)
    view = topology_view(dataclasses.replace(overview, inventory=inventory), Topology())
    assert view.title == "No GPU can be seen here"
    assert (view.tables, view.lines, view.notes) == ((), (), (problem,))
    assert "<svg" not in as_html(view)


def test_where_the_driver_says_nothing_the_table_says_unknown():
    overview = overview_of("two NVLink pairs")
    text = as_text(topology_view(overview, Topology()))
    assert text.startswith("4 GPUs: how they are connected is unknown")
    assert "  3 = cuda:3  –  –  –  X" in text
    assert "–: the driver does not say" in text
    assert "NUMA" not in text


def test_a_lost_gpu_has_a_row_and_a_note():
    overview, topology = machine(2, everywhere(2, path="node", nvlink=False))
    lost = Device(2, None, "unknown GPU", problem="GPU 2 is lost.")
    devices = (*overview.inventory.devices, lost)
    inventory = dataclasses.replace(overview.inventory, devices=devices)
    view = topology_view(dataclasses.replace(overview, inventory=inventory), topology)
    text = as_text(view)
    assert "  2           –     –     X" in text
    assert "Note: GPU 2 is lost." in text


@pytest.mark.parametrize("count", range(2, 17))
@pytest.mark.parametrize(
    "link",
    [
        {"path": "node", "nvlink": True, "nvlinks": 18, "through_switch": True},
        {"path": "hostbridge", "nvlink": False},
        {},
    ],
)
def test_up_to_sixteen_gpus_stand_in_one_table_of_80_columns(count, link):
    view = topology_view(*machine(count, everywhere(count, **link)))
    assert len(view.tables[0].rows) == count
    assert all(len(row) == count + 1 for row in view.tables[0].rows)
    text = as_text(view)
    assert fits(text)
    assert "…" not in text


def test_sixteen_gpus_have_names_of_two_letters_that_are_explained():
    links = [
        dataclasses.replace(link, path=PATHS[number % len(PATHS)])
        for number, link in enumerate(everywhere(16, nvlink=False))
    ]
    view = topology_view(*machine(16, links))
    names = {cell for row in view.tables[0].rows for cell in row[1:]}
    assert names == {"X", "PS", "PI", "PX", "PH", "NO", "SY"}
    assert view.lines[1] == "PI (PIX): through one PCIe switch"
    joined = topology_view(*machine(16, everywhere(16, nvlink=True, nvlinks=6)))
    assert joined.lines[0] == "NV: NVLink, 6 links"


def test_more_than_a_table_can_hold_is_said_in_words():
    view = topology_view(*machine(40, everywhere(40, nvlink=True, nvlinks=6)))
    assert [table.caption for table in view.tables] == ["Near each GPU"]
    assert "wider than a terminal" in view.lines[-1]
    assert "NVLink joins 0-39." in view.lines[-1]
    assert fits(as_text(view))


def test_a_part_of_a_gpu_is_marked_on_its_row():
    whole = Device(0, "GPU-0", "NVIDIA H200", mig_mode=True)
    parts = tuple(
        Device(0, f"MIG-{n}", "NVIDIA H200 MIG 1g.18gb", kind="mig", parent="GPU-0") for n in (1, 2)
    )
    devices = (whole, *parts, Device(1, "GPU-1", "NVIDIA H200"))
    inventory = Inventory("nvml", "580.95.05", "13.0", None, devices)
    topology = Topology(
        (Place("GPU-0", 0, 0), Place("GPU-1", 1, 1)), (Link("GPU-0", "GPU-1", "system", False),)
    )
    process = KernelProcess(1, None, None, "frozen", (InForce(0, 0, "MIG-2"),))
    overview = Overview(inventory, visible(None, inventory), process=process)
    view = topology_view(overview, topology)
    assert [row[0] for row in view.tables[0].rows] == ["0 part cuda:0", "1"]
    assert view.title == "2 GPUs: no NVLink, only PCIe"
    assert "in MIG mode" in view.notes[0]
    answer = topology_answer(overview, topology)
    assert [(one["kind"], one["ordinal"], one["numa_node"]) for one in answer["devices"]] == [
        ("gpu", None, 0),
        ("mig", None, 0),
        ("mig", 0, 0),
        ("gpu", None, 1),
    ]
    both = dataclasses.replace(process, in_force=(InForce(0, 0, "MIG-1"), InForce(1, 0, "MIG-2")))
    view = topology_view(dataclasses.replace(overview, process=both), topology)
    assert view.tables[0].rows[0][0] == "0 part cuda:0, 1"


def test_what_is_in_force_counts_before_what_is_set():
    overview = overview_of("two NVLink pairs", "2,3")
    uuids = [device.uuid for device in overview.inventory.devices]
    assert [shown.uuid for shown in overview.shown] == uuids[2:]
    frozen = KernelProcess(
        1, None, "2,3", "frozen", (InForce(0, 1, uuids[1]), InForce(1, None, None))
    )
    text = as_text(
        topology_view(
            dataclasses.replace(overview, process=frozen), topology_of("two NVLink pairs")
        )
    )
    assert "  1 = cuda:0  " in text
    assert "  2           " in text
    absent = dataclasses.replace(frozen, state="absent", in_force=None)
    assert dataclasses.replace(overview, process=absent).shown == ()


def test_a_kernel_without_gpus_is_told_so():
    assert "No GPU is visible in this kernel." in text_of("two NVLink pairs", "")


@pytest.mark.parametrize("name", SHAPES)
def test_the_answer_for_programs_has_every_gpu_and_every_pair(name):
    overview, topology = overview_of(name), topology_of(name)
    answer = topology_answer(overview, topology)
    count = len(overview.inventory.gpus)
    assert answer["schema"] == 1
    assert len(answer["devices"]) == count
    assert len(answer["links"]) == count * (count - 1) // 2
    for device, (index, place) in zip(answer["devices"], enumerate(topology.places), strict=True):
        assert (device["index"], device["ordinal"], device["uuid"]) == (index, index, place.uuid)
        assert device["cpus"] == SHAPES[name]["cpus"][index]
    empty = topology_answer(overview, Topology())
    assert empty["links"] == []
    assert all(device["cpus"] is device["numa_node"] is None for device in empty["devices"])


def test_the_drawing_says_the_answer_in_words():
    html = as_html(topology_view(overview_of("two NVLink pairs"), topology_of("two NVLink pairs")))
    label = html[html.index("<svg") :].partition('aria-label="')[2].partition('"')[0]
    assert label.startswith(
        "4 GPUs: NVLink between some pairs. NVLink joins 0-1. NVLink joins 2-3."
    )


@given(st.text(min_size=1))
def test_names_from_elsewhere_are_only_text(text):
    hostile = f"<script>{text}"
    overview, topology = machine(2, everywhere(2, nvlink=True), model=hostile)
    inventory = dataclasses.replace(overview.inventory, driver=hostile, problem=hostile)
    html = as_html(topology_view(dataclasses.replace(overview, inventory=inventory), topology))
    assert "<script" not in html
