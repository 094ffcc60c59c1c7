"""The rules as one person meets them: reservations, what they hold, the words of a refusal."""

import json
from fractions import Fraction

import pytest

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Holdings, Lease, Owner, Record, Waiter
from jupyter_gpu.core.rivals import CONFLICT, NOT_HELD
from jupyter_gpu.core.rules import (
    PersonRules,
    Reservation,
    Rules,
    can_never_have,
    held_by,
    number_words,
    over_limit,
    parse_rules,
    rules_answer,
)

SOURCE = "/etc/jupyter-gpu.toml"
GPU = "GPU-5d9e4a86-9c04-71e6-a3d8-f25b00000000"
OTHER = "GPU-6d9e4a86-9c04-71e6-a3d8-f25b00000000"
PART = Device(
    6,
    "MIG-11111111-2222-3333-4444-555555555555",
    "NVIDIA H200 MIG 1g.18gb",
    kind="mig",
    parent=GPU,
    profile="1g.18gb",
    gpu_instance=7,
    compute_instance=0,
)


def against(device, *tables, user="dave", groups=()):
    return PersonRules(user, groups, reserved=tables).reserved_against(device)


class TestReservedAgainst:
    @pytest.mark.parametrize("name", [6, GPU, GPU[:8], GPU[:8].upper(), "gpu-5D9E4A86"])
    def test_an_index_a_uuid_or_its_start_means_a_gpu_and_its_parts(self, name):
        table = Reservation((name,), users=("alice",))
        assert against(Device(6, GPU, "NVIDIA H200"), table) == "reserved for alice"
        assert against(PART, table) == "reserved for alice"
        assert against(Device(5, OTHER, "NVIDIA H200"), table) is None

    @pytest.mark.parametrize("name", [PART.uuid, "MIG-1111", f"MIG-{GPU}/7/0"])
    def test_a_mig_device_can_be_reserved_by_itself(self, name):
        table = Reservation((name,), users=("alice",))
        assert against(PART, table) == "reserved for alice"
        assert against(Device(6, GPU, "NVIDIA H200"), table) is None

    def test_a_gpu_so_lost_that_it_has_no_uuid_is_meant_by_its_index_only(self):
        lost = Device(6, None, "NVIDIA H200")
        assert against(lost, Reservation((6,), users=("alice",))) == "reserved for alice"
        assert against(lost, Reservation((GPU,), users=("alice",))) is None

    def test_users_and_groups_of_any_table_may_have_it(self):
        device = Device(6, GPU, "NVIDIA H200")
        tables = (
            Reservation((6,), users=("alice",)),
            Reservation((GPU,), users=("alice",), groups=("staff",)),
            Reservation((5,), users=("dave",)),
        )
        assert against(device, *tables) == "reserved for alice and group staff"
        assert against(device, *tables, user="alice") is None
        assert against(device, *tables, groups=("users", "staff")) is None
        assert against(device, *tables, user="staff") == "reserved for alice and group staff"
        assert against(device, *tables, groups=("alice",)) is not None

    @pytest.mark.parametrize(
        ("users", "words"),
        [
            ("a", "a"),
            ("ab", "a and b"),
            ("abcd", "a, b, c and d"),
            ("abcde", "a, b, c and 2 more"),
            ("abcdefgh", "a, b, c and 5 more"),
        ],
    )
    def test_many_names_are_counted(self, users, words):
        table = Reservation((6,), users=tuple(users))
        assert against(Device(6, GPU, "NVIDIA H200"), table) == f"reserved for {words}"


def lease(*uuids, user="alice", units=DEVICE_UNITS, ancestors=(), state="active", note=None):
    record = Record("0" * 15, Owner("kernel"), "", uuids=uuids, units=units, ancestors=ancestors)
    return Lease(record, user, state, note=note)


def held(*leases, user="alice"):
    waiter = Waiter(Record("1" * 15, Owner("kernel"), "", uuids=("GPU-9",)), "alice")
    return held_by(Holdings(tuple(leases), (waiter,), ("GPU-8",)), user)


class TestHeldBy:
    def test_whole_devices_and_shares_of_one_user(self):
        quarter = DEVICE_UNITS // 4
        assert held() == 0
        assert held(lease()) == 0
        assert held(lease("GPU-1", "GPU-2"), lease("GPU-3", user="bob")) == 2
        assert held(lease("GPU-1", units=quarter), lease("GPU-1", units=quarter)) == Fraction(1, 2)
        assert held(lease("GPU-1"), lease("GPU-2", units=quarter)) == Fraction(5, 4)
        assert held(lease("GPU-1", user=None), user="bob") == 0

    def test_nested_leases_use_what_is_counted_already(self):
        assert held(lease("GPU-1", "GPU-2"), lease("GPU-1", ancestors=("f" * 15,))) == 2

    def test_draining_and_idle_ones_count(self):
        assert held(lease("GPU-1", state="draining"), lease("GPU-2", state="idle")) == 2

    def test_nobody_holds_more_than_all_of_a_device(self):
        assert held(lease("GPU-1", note=CONFLICT), lease("GPU-1")) == 1
        assert held(lease("GPU-1", "GPU-1")) == 1
        assert held(lease("GPU-1"), lease("GPU-1", units=DEVICE_UNITS // 2)) == 1

    def test_what_a_record_only_claims_does_not_count(self):
        assert held(lease("GPU-1", note=NOT_HELD), lease("GPU-2")) == 1


def person(limit, user="dave"):
    return parse_rules({"max_devices_per_user": limit}, SOURCE).for_person(user, ())


class TestOverLimit:
    @pytest.mark.parametrize(
        ("limit", "held", "wanted", "sentence"),
        [
            (2, 0, 2, None),
            (2, 1, 1, None),
            ("none", 100, 100, None),
            (2, 3, 0, None),  # a kernel without a GPU
            ("1/2", Fraction(1, 4), Fraction(1, 4), None),
            (1, Fraction(6930, 27720), Fraction(20790, 27720), None),
            (2, 2, 1, "You hold 2 devices, and the limit is 2: max_devices_per_user = 2"),
            (2, 3, 1, "You hold 3 devices, and the limit is 2: max_devices_per_user = 2"),
            (2, 1, 2, "You hold 1 device, this asks for 2 more, and the limit is 2: max_"),
            (2, 0, 3, "This asks for 3 devices, and the limit is 2: max_devices_per_user = 2"),
            (0, 0, 1, "This asks for 1 device, and the limit is 0: max_devices_per_user = 0"),
            ("1/2", 0, 1, "This asks for 1 device, and the limit is ½: max_devices_per_user = 1/2"),
            (
                1.5,
                1,
                Fraction(3, 4),
                "You hold 1 device, this asks for ¾ more, and the limit is 1½: max_devices_per",
            ),
        ],
    )
    def test_the_sentence_says_what_is_held_and_which_rule(self, limit, held, wanted, sentence):
        found = over_limit(person(limit), Fraction(held), Fraction(wanted))
        if sentence is None:
            assert found is None
        else:
            assert found.startswith(sentence)
            assert found.endswith(f" in {SOURCE}.")

    def test_a_limit_that_can_never_be_kept_to_is_told_from_one_that_others_leave_room_for(self):
        assert not can_never_have(person(2), Fraction(2))
        assert can_never_have(person(2), Fraction(3))
        assert can_never_have(person(0), Fraction(1, 4))
        assert not can_never_have(person(0), Fraction(0))
        assert not can_never_have(person("none"), Fraction(1000))
        assert not can_never_have(PersonRules("dave"), Fraction(1000))


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (Fraction(0), "0 devices"),
        (Fraction(1), "1 device"),
        (Fraction(2), "2 devices"),
        (Fraction(1, 4), "¼ device"),
        (Fraction(7, 4), "1¾ devices"),
        (Fraction(3, 10), "3/10 device"),
        (Fraction(13, 10), "1.30 devices"),
        (Fraction(1732, 27720), "0.06 devices"),
    ],
)
def test_numbers_in_words(count, words):
    assert number_words(count) == words


def test_programs_read_the_rules_that_concern_a_person():
    rules = parse_rules(
        {
            "max_devices_per_user": "1/2",
            "show_notebooks": "none",
            "default_wait": "10m",
            "idle_shutdown": "8h",
            "reserved": [{"devices": [6, "GPU-5d9e"], "users": ["alice"], "groups": ["staff"]}],
        },
        SOURCE,
    )
    answer = rules_answer(rules, rules.for_person("dave", ()), Fraction(1, 4))
    assert json.loads(json.dumps(answer)) == {
        "source": SOURCE,
        "max_devices_per_user": 0.5,
        "held": 0.25,
        "show_notebooks": "none",
        "default_wait_seconds": 600.0,
        "idle_warning_seconds": None,
        "idle_shutdown_seconds": 28800.0,
        "mig_devices_per_kernel": 1,
        "reserved": [{"devices": [6, "GPU-5d9e"], "users": ["alice"], "groups": ["staff"]}],
    }


def test_without_rules_everything_is_null_or_the_default():
    answer = rules_answer(Rules(), Rules().for_person("dave", ()))
    assert answer["source"] is None
    assert answer["max_devices_per_user"] is None
    assert answer["held"] is None
    assert answer["show_notebooks"] == "all"
    assert answer["default_wait_seconds"] is None
    assert answer["reserved"] == []
