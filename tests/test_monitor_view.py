from dataclasses import replace

import pytest
from support_cli import GIB, device, inventory, uuid
from support_monitor import TOTAL, moment, points, reading, waiting

from jupyter_gpu.core.devices import Device, Inventory, Process
from jupyter_gpu.core.leases import Holdings
from jupyter_gpu.core.monitor_view import (
    Choice,
    cards_of,
    memory_split,
    monitor_view,
    state_lines,
    title_of,
    warnings_of,
)
from jupyter_gpu.core.readings import Reading
from jupyter_gpu.core.render_text import as_text

ALL = Choice()


def card(**changes):
    """The card of physical 3, which is the only visible device."""
    given = changes.pop("reading", reading())
    return cards_of(moment(own=(3,), readings={uuid(3): given}, **changes), ALL)[0]


def text(shown, choice=ALL):
    return as_text(monitor_view(shown, choice))


def test_there_is_a_card_for_each_visible_device_in_visible_order():
    found = cards_of(moment(own=(5, 3)), ALL)
    assert [one.words for one in found] == ["cuda:0 = physical 5", "cuda:1 = physical 3"]


def test_chosen_devices_come_in_their_order_visible_or_not():
    found = cards_of(moment(), Choice((uuid(5), uuid(1), uuid(3))))
    assert [one.words for one in found] == [
        "cuda:1 = physical 5",
        "not visible: physical 1",
        "cuda:0 = physical 3",
    ]


def test_nothing_chosen_is_no_card_rather_than_all_of_them():
    assert cards_of(moment(), Choice(())) == ()


def test_a_chosen_device_that_nobody_knows_is_shown_as_gone():
    found = cards_of(moment(), Choice(("GPU-0badc0de-5d9e-4a86",)))[0]
    assert found.words == "not visible: GPU-0badc0de"
    assert found.problem == "NVML no longer lists it"


def test_memory_is_mine_others_and_free():
    found = card()
    assert found.memory_mine_bytes == 12 * GIB
    assert found.memory_others_bytes == 3 * GIB + 600 * 2**20
    assert found.memory_mine_bytes + found.memory_others_bytes + found.memory_free_bytes == TOTAL
    assert memory_split(found) == "12.0 mine, 3.6 others, 124.8 GiB free"


def test_what_the_reading_leaves_out_comes_from_the_overview():
    old = device(3, memory_used_bytes=7 * GIB, processes=(Process(4711, 5 * GIB),), power_watts=99)
    found = card(devices=[old], reading=Reading(utilization_percent=8.4))
    assert memory_split(found) == "5.0 mine, 2.0 others, 133.4 GiB free"
    assert (found.utilization_percent, found.power_watts) == (8.4, 99)
    assert cards_of(moment(own=(3,), devices=[old], readings={}), ALL)[0].power_watts == 99


def test_a_part_read_after_its_whole_is_never_above_it():
    found = card(reading=Reading(GIB, processes=(Process(4711, 3 * GIB),)))
    assert (found.memory_mine_bytes, found.memory_others_bytes) == (GIB, 0)


def test_a_device_that_does_not_answer_has_no_numbers_and_says_why():
    found = card(reading=Reading(problem="GPU 3 is lost: it has fallen off the bus"))
    assert memory_split(found) == "– used, – free"
    assert found.utilization_percent is None
    assert found.processes == ()
    assert found.problem == "GPU 3 is lost: it has fallen off the bus"
    assert len(found.points) == 301


def test_a_device_that_has_gone_keeps_its_place():
    shown = moment(own=(3, 5), devices=[device(3)])
    found = cards_of(shown, ALL)
    assert [one.words for one in found] == ["cuda:0 = physical 3", "cuda:1 = physical 5"]
    assert found[1].problem == "NVML no longer lists it"
    assert "Note: cuda:1 = physical 5: NVML no longer lists it." in text(shown)


def test_a_problem_of_the_overview_is_told_too():
    assert card(devices=[device(3, problem="needs a reset")]).problem == "needs a reset"


def test_a_process_without_a_known_size_makes_mine_unknown_and_not_nothing():
    found = card(reading=reading(Process(4711, None), Process(4411, 3 * GIB)))
    assert found.memory_others_bytes is None
    assert memory_split(found) == "3.6 used, 136.8 GiB free"


def test_a_total_that_is_unknown_or_nothing_leaves_free_unknown():
    for total in (None, 0):
        found = card(devices=[device(3, memory_total_bytes=total)])
        assert memory_split(found) == "12.0 mine, 3.6 others, – free"


def test_processes_have_owners_this_kernel_first_then_the_largest():
    found = card(
        reading=reading(
            Process(77, 1), Process(4411, 3 * GIB), Process(4711, 2 * GIB), Process(78, None)
        )
    )
    assert [(one.pid, one.words, one.own) for one in found.processes] == [
        (4711, "this kernel", True),
        (4411, "bob: python train.py --epoch…", False),
        (77, "unknown user", False),
        (78, "unknown user", False),
    ]


def test_where_our_pid_may_be_another_process_nobody_can_tell_what_is_mine():
    shown = moment(own=(3,))
    shown = replace(shown, overview=replace(shown.overview, seen=()))
    found = cards_of(shown, ALL)[0]
    assert found.memory_mine_bytes is None
    assert [one.own for one in found.processes] == [False, False]


def test_a_mig_device_has_its_profile_and_no_load():
    part = Device(
        0, "MIG-1f2e3d4c-aaaa", "NVIDIA H200 MIG 1g.18gb", "mig", uuid(0), "1g.18gb",
        memory_total_bytes=18 * GIB, memory_used_bytes=0,
    )  # fmt: skip
    whole = device(0, mig_mode=True, problem="in MIG mode: it is used in parts, listed below it")
    shown = moment(own=(), devices=[whole, part])
    found = cards_of(replace(shown, readings={part.uuid: reading()}), Choice((part.uuid,)))[0]
    assert found.model == "H200 MIG 1g.18gb"
    assert found.utilization_percent is None
    assert found.temperature_celsius == 61


def test_a_load_that_is_no_number_is_unknown():
    found = card(reading=reading(utilization_percent=float("nan"), power_watts=float("inf")))
    assert (found.utilization_percent, found.power_watts) == (None, None)


def test_the_text_has_the_answer_the_devices_and_the_time():
    lines = text(moment(past={uuid(3): points()})).split("\n")
    assert lines[0].startswith("2 of 8 GPUs are yours")
    row = "cuda:0 = physical 3  H200  15.6 of 140.4 GiB  12.0 here  43 %  61 °C  412 W"
    assert lines[1].strip() == row
    assert "At 12:00:00." in lines
    assert "CUDA is frozen" in " ".join(lines)
    assert "Leased since 10:42 for train.ipynb" in " ".join(lines)


@pytest.mark.parametrize("count", [1, 2, 8, 16])
def test_the_text_keeps_to_eighty_columns(count):
    shown = moment(count, tuple(range(count)), waiters=waiting())
    assert max(map(len, text(shown).split("\n"))) <= 80


def test_without_a_device_the_answer_is_the_reason():
    shown = moment(own=())
    gone = Inventory("none", problem="No NVIDIA driver is loaded here.")
    shown = replace(
        shown, overview=replace(shown.overview, inventory=gone, holdings=Holdings()), readings={}
    )
    assert title_of(shown) == "No GPU can be seen here"
    assert "No NVIDIA driver is loaded here." in warnings_of(shown)
    assert cards_of(shown, ALL) == ()
    assert "No NVIDIA driver is loaded here." in text(shown)


def test_what_could_not_be_read_is_a_warning_and_said_once():
    shown = moment(problem="The processes cannot be read.", devices=[device(3), device(5)])
    assert warnings_of(shown).count("The processes cannot be read.") == 1
    again = replace(
        shown,
        overview=replace(
            shown.overview, inventory=inventory(device(3), problem="The processes cannot be read.")
        ),
    )
    assert warnings_of(again).count("The processes cannot be read.") == 1


def test_outside_a_kernel_there_is_no_state_and_no_crash():
    shown = moment(own=())
    shown = replace(shown, overview=replace(shown.overview, process=None))
    assert state_lines(shown) == ()
    assert "At 12:00:00." in text(shown)
