"""What a hold is, how its file reads, and which device a name means."""

import json
from dataclasses import replace

import pytest

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.errors import UsageError
from jupyter_gpu.core.holds import (
    REASON_LENGTH,
    Hold,
    Holds,
    device_meant,
    device_name,
    held_name,
    hold_meant,
    reason_of,
)

SINCE = "2026-12-01T09:12:00+01:00"
MIG = "MIG-11111111-2222-3333-4444-555555555555"


def uuid(index):
    return f"GPU-{index:08x}-5d9e-4a86-9c04-71e6a3d8f25b"


def device(index, **changes):
    return replace(Device(index, uuid(index), "NVIDIA H200"), **changes)


def inventory(*devices):
    return Inventory("nvml", devices=devices or tuple(map(device, range(4))))


def in_mig_mode():
    """Four GPUs, the third of them in MIG mode with one part."""
    gpu = device(2, mig_mode=True, problem="GPU 2 is in MIG mode")
    part = device(2, uuid=MIG, kind="mig", parent=uuid(2), profile="1g.18gb")
    return inventory(device(0), device(1), gpu, part, device(3))


FAN = Hold(uuid(3), 3, "fan", "root", SINCE)


def test_its_words_are_in_the_machines_own_time():
    assert FAN.words == "on hold since 2026-12-01 09:12 by root: fan"
    assert Hold(uuid(3), 3, "fan", None, SINCE).words == "on hold since 2026-12-01 09:12: fan"


def test_programs_get_its_time_in_utc():
    assert FAN.as_json() == {
        "uuid": uuid(3),
        "index": 3,
        "reason": "fan",
        "by": "root",
        "since": "2026-12-01T08:12:00+00:00",
    }


def test_what_was_written_is_read():
    holds = Holds((FAN, Hold(MIG, None, "ECC", None, SINCE)))
    assert Holds.from_json(holds.to_json()) == holds
    assert Holds.from_json(Holds().to_json()) == Holds()


def row(**changes):
    plain = {"uuid": uuid(3), "index": 3, "reason": "fan", "by": "root", "since": SINCE}
    return {key: value for key, value in {**plain, **changes}.items() if value is not ...}


@pytest.mark.parametrize(
    "data",
    [
        [],
        None,
        {},
        {"schema": 2, "holds": []},
        {"schema": 1},
        {"schema": 1, "holds": {}},
        {"schema": 1, "holds": [3]},
        {"schema": 1, "holds": [{}]},
        *(
            {"schema": 1, "holds": [row(), row(**changes)]}
            for changes in (
                {"uuid": ""},
                {"uuid": None},
                {"uuid": 3},
                {"index": "3"},
                {"index": True},
                {"index": 1.5},
                {"reason": ...},
                {"by": 0},
                {"since": ...},
                {"since": "yesterday"},
                {"since": "2026-12-01T09:12:00"},
                {"since": "0001-01-01T00:00:00+14:00"},
            )
        ),
    ],
)
def test_one_wrong_part_makes_the_whole_file_wrong(data):
    with pytest.raises(ValueError):
        Holds.from_json(json.dumps(data))


def test_text_in_the_file_cannot_reach_a_terminal_unclean():
    text = json.dumps({"schema": 1, "holds": [row(reason="fan\x1b[2J", by="ro\not")]})
    assert Holds.from_json(text).entries[0].words.endswith("by ro?ot: fan?[2J")


def test_a_hold_on_a_gpu_holds_its_parts_and_one_on_a_part_only_that():
    machine = in_mig_mode()
    part, gpu, other = machine.find(MIG), machine.find(uuid(2)), machine.find(uuid(3))
    whole, own = Hold(uuid(2), 2, "all", "root", SINCE), Hold(MIG, 2, "part", "root", SINCE)
    assert Holds((whole,)).holding(gpu) is whole
    assert Holds((whole,)).holding(part) is whole
    assert Holds((own,)).holding(part) is own
    assert Holds((own,)).holding(gpu) is None
    assert Holds((whole, own)).holding(part) is own
    assert Holds((whole, own)).holding(other) is None
    assert Holds((whole,)).on(MIG) is None


def test_a_lost_gpu_without_a_uuid_is_held_by_nothing():
    lost = device(1, uuid=None)
    assert Holds((FAN,)).holding(lost) is None


def test_changes_keep_the_rest():
    newer = Hold(uuid(3), 3, "pump", "root", SINCE)
    other = Hold(uuid(1), 1, "ECC", "root", SINCE)
    assert Holds((FAN,)).changed([other]).entries == (FAN, other)
    assert Holds((FAN, other)).changed([newer]).entries == (newer, other)
    assert Holds((FAN, other)).without([newer]).entries == (other,)


@pytest.mark.parametrize("given", [None, "", "   ", "\n\t"])
def test_a_hold_needs_a_reason(given):
    with pytest.raises(UsageError, match="needs a reason"):
        reason_of(given)


def test_a_reason_is_one_clean_line_and_not_endless():
    assert reason_of("  fan\n is\tloud ") == "fan is loud"
    assert reason_of("fan\x1b[31m\x00") == "fan?[31m?"
    assert reason_of("a" * 500) == "a" * (REASON_LENGTH - 1) + "…"


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("0", 0),
        ("3", 3),
        ("03", 3),
        (uuid(1), 1),
        (uuid(1).lower().replace("gpu", "GPU"), 1),
        (uuid(1).upper(), 1),
        ("GPU-00000001", 1),
        ("gpu-00000001", 1),
    ],
)
def test_an_index_a_uuid_or_its_start_means_a_gpu(name, index):
    assert device_meant(name, inventory()).index == index


def test_an_index_means_the_gpu_and_never_its_parts():
    machine = in_mig_mode()
    assert device_meant("2", machine).kind == "gpu"
    assert device_meant(MIG[:12], machine).uuid == MIG
    assert device_meant(MIG.lower(), machine).uuid == MIG


@pytest.mark.parametrize("name", ["4", "-1", "", "GP", "H200", "GPU-f", "MIG-", "²", "9" * 5000])
def test_what_means_nothing_here_is_refused_with_what_there_is(name):
    with pytest.raises(UsageError, match="There is no device") as refused:
        device_meant(name, inventory())
    assert all(f"  {index}  {uuid(index)}" in str(refused.value) for index in range(4))
    assert "9" * 2000 not in str(refused.value)


def test_what_means_several_is_refused_with_all_of_them():
    with pytest.raises(UsageError, match="means several devices") as refused:
        device_meant("GPU-0000000", inventory(device(1), device(2)))
    assert uuid(1) in str(refused.value)
    assert uuid(2) in str(refused.value)


def test_a_machine_without_gpus_says_why():
    nothing = Inventory("none", problem="The NVIDIA driver is not loaded.")
    with pytest.raises(UsageError, match=r"no GPU can be seen here\. The NVIDIA driver"):
        device_meant("0", nothing)


def test_a_gpu_so_lost_that_it_has_no_uuid_cannot_be_named():
    lost = device(1, uuid=None)
    with pytest.raises(UsageError, match="GPU 1 is so lost"):
        device_meant("1", inventory(device(0), lost))


@pytest.mark.parametrize("name", ["3", uuid(3), "GPU-00000003"])
def test_a_hold_is_meant_by_the_same_names(name):
    other = Hold(uuid(1), 1, "ECC", "root", SINCE)
    assert hold_meant(name, Holds((other, FAN)), inventory()) is FAN


def test_after_a_restart_the_index_of_today_counts():
    moved = Hold(uuid(3), 0, "fan", "root", SINCE)
    assert hold_meant("3", Holds((moved,)), inventory()) is moved
    with pytest.raises(UsageError, match="0 is not on hold"):
        hold_meant("0", Holds((moved,)), inventory())


def test_a_device_that_is_gone_can_be_named_still():
    gone = Hold("GPU-ffffffff-0000", 7, "sent back", "root", SINCE)
    part = Hold("MIG-ffffffff-0000", 7, "sent back", "root", SINCE)
    assert hold_meant("7", Holds((gone, part)), inventory()) is gone
    assert hold_meant("MIG-ff", Holds((gone, part)), Inventory("none")) is part
    assert held_name(gone, inventory()) == "device GPU-ffffffff-0000"


def test_what_is_not_on_hold_is_refused_with_what_is():
    with pytest.raises(UsageError, match="1 is not on hold, nor is any other device"):
        hold_meant("1", Holds(), inventory())
    with pytest.raises(UsageError, match=r"not on hold[^$]*GPU 3  on hold since .* root: fan"):
        hold_meant("1", Holds((FAN,)), inventory())


def test_several_holds_of_one_name_are_listed():
    both = Holds((FAN, Hold(uuid(4), 4, "ECC", "root", SINCE)))
    with pytest.raises(UsageError, match="several devices") as refused:
        hold_meant("GPU-0000000", both, inventory())
    assert uuid(4) in str(refused.value)


def test_names_of_devices():
    machine = in_mig_mode()
    assert device_name(machine.gpus[1]) == "GPU 1"
    assert device_name(machine.find(MIG)) == f"MIG device {MIG} of GPU 2"
