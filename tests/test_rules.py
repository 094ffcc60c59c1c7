"""The rules: what a file may say, what is refused with which words, and whom each rule means."""

import datetime as dt
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.core.rules import Rules, RulesError, parse_rules

SOURCE = "/etc/jupyter-gpu.toml"
EVERYTHING = {
    "max_devices_per_user": 2,
    "show_notebooks": "own",
    "default_wait": "30s",
    "idle_warning": "2h",
    "idle_shutdown": "8h",
    "mig_devices_per_kernel": 7,
    "groups": {"students": {"max_devices_per_user": 1, "default_wait": "10m"}, "staff": {}},
    "users": {"alice": {"max_devices_per_user": 4}},
    "reserved": [{"devices": [6, 7], "users": ["alice"], "groups": ["staff"]}],
}


def rules(**data):
    return parse_rules(data, SOURCE)


def refused(**data):
    with pytest.raises(RulesError) as caught:
        rules(**data)
    return caught.value


def test_an_empty_file_is_a_site_without_rules_but_for_its_source():
    assert parse_rules({}, SOURCE) == Rules(source=SOURCE)
    nobody = Rules().for_person("alice", ("staff",))
    assert (nobody.max_devices, nobody.limit_words, nobody.default_wait) == (None, None, None)
    assert nobody.reserved_against(Device(0, "GPU-0", "NVIDIA H200")) is None
    assert Rules().show_notebooks == "all"
    assert Rules().mig_devices_per_kernel == 1
    assert not Rules().limits_anyone


def test_every_key_is_read():
    found = rules(**EVERYTHING)
    assert found.source == SOURCE
    assert found.show_notebooks == "own"
    assert (found.idle_warning_seconds, found.idle_shutdown_seconds) == (7200, 28800)
    assert found.mig_devices_per_kernel == 7
    assert found.limits_anyone
    dave = found.for_person("dave", ("users",))
    assert (dave.max_devices, dave.default_wait) == (2, 30)
    assert found.reserved[0].devices == (6, 7)
    assert hash(found) == hash(rules(**EVERYTHING))


NUMBERS = [
    (2, Fraction(2)),
    (0, Fraction(0)),
    (0.5, Fraction(1, 2)),
    (0.1, Fraction(1, 10)),
    (-0.0, Fraction(0)),
    (1e-3, Fraction(1, 1000)),
    ("1/2", Fraction(1, 2)),
    (" 3 / 2 ", Fraction(3, 2)),
    ("2", Fraction(2)),
    ("0/4", Fraction(0)),
    (10**6, Fraction(10**6)),
    ("none", None),
]


@pytest.mark.parametrize(("given", "number"), NUMBERS)
def test_a_number_of_devices(given, number):
    found = rules(max_devices_per_user=given)
    assert found.for_person("alice", ()).max_devices == number
    assert found.limits_anyone == (number is not None)


NO_NUMBERS = [
    True,
    False,
    -1,
    -0.5,
    math.nan,
    math.inf,
    -math.inf,
    10**6 + 1,
    1e300,
    int("9" * 4000),
    16**9000,
    "",
    "two",
    "1/0",
    "0/0",
    "-1/2",
    "1/2/3",
    "0.5",
    "¼",
    "²",
    "1" * 5000,
    "None",
    [],
    [2],
    {},
    {"none": 1},
    dt.date(2026, 12, 1),
]


@pytest.mark.parametrize("given", NO_NUMBERS, ids=lambda given: type(given).__name__)
def test_what_is_no_number_of_devices_is_refused(given):
    for data, table in (
        ({"max_devices_per_user": given}, None),
        ({"groups": {"students": {"max_devices_per_user": given}}}, "[groups.students]"),
        ({"users": {"alice": {"max_devices_per_user": given}}}, "[users.alice]"),
    ):
        error = refused(**data)
        assert error.table == table
        assert error.found.startswith("max_devices_per_user: ")
        assert 'a number of devices from 0 to 1000000, such as 2, 0.5 or "1/2"' in error.found


@pytest.mark.parametrize(
    ("given", "seconds"), [("30s", 30), ("1.5h", 5400), (0, 0), (20, 20), (0.5, 0.5), (2e6, 2e6)]
)
def test_a_default_wait(given, seconds):
    assert rules(default_wait=given).for_person("alice", ()).default_wait == seconds


NO_TIMES = ["", "soon", "-1s", -1, math.nan, math.inf, True, 16**9000, "1e3", [], {}, ["1s"]]
NO_TIMES += [dt.time(8), dt.datetime(2026, 12, 1, tzinfo=dt.timezone.utc), "2 weeks", "none "]


@pytest.mark.parametrize("given", NO_TIMES, ids=lambda given: type(given).__name__)
@pytest.mark.parametrize("key", ["default_wait", "idle_warning", "idle_shutdown"])
def test_what_is_no_time_is_refused(key, given):
    error = refused(**{key: given})
    assert error.found.startswith(f"{key}: ")
    assert "is not a time" in error.found


@pytest.mark.parametrize("key", ["idle_warning", "idle_shutdown"])
def test_idle_times_are_off_or_above_zero(key):
    assert getattr(rules(), f"{key}_seconds") is None
    assert getattr(rules(**{key: "none"}), f"{key}_seconds") is None
    assert getattr(rules(**{key: "90m"}), f"{key}_seconds") == 5400
    for zero in (0, 0.0, "0s", -0.0):
        assert "is not a time above 0" in refused(**{key: zero}).found


@pytest.mark.parametrize("given", ["All", "", "owner", True, 1, [], ["all"], {}, math.nan])
def test_notebook_names_are_for_all_for_their_own_or_for_none(given):
    for word in ("all", "own", "none"):
        assert rules(show_notebooks=word).show_notebooks == word
    assert "is not one of all, own, none" in refused(show_notebooks=given).found


NO_COUNTS = [0, -1, True, 1.0, "1", "none", 10**7, 16**9000, [], {}]


@pytest.mark.parametrize("given", NO_COUNTS, ids=lambda given: type(given).__name__)
def test_mig_devices_per_kernel_is_a_whole_number(given):
    assert "a whole number from 1 to" in refused(mig_devices_per_kernel=given).found


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("data", "table", "words"),
        [
            ({"max_device_per_user": 1}, None, "Did you mean 'max_devices_per_user'?"),
            ({"show-notebooks": "own"}, None, "Did you mean 'show_notebooks'?"),
            ({"user": {}}, None, "Did you mean 'users'?"),
            ({"Users": {}}, None, "Did you mean 'users'?"),
            ({"xyzzy": 1}, None, "xyzzy is not a key here.\nThe keys here: max_"),
            ({"users": {"alice": {"default_waits": 1}}}, "[users.alice]", "'default_wait'?"),
            ({"groups": {"a b": {"limit": 1}}}, '[groups."a b"]', "limit is not a key here"),
            ({"reserved": [{"device": [1]}]}, "[[reserved]] number 1", "Did you mean 'devices'?"),
        ],
    )
    def test_they_are_errors_everywhere_with_what_was_probably_meant(self, data, table, words):
        error = refused(**data)
        assert error.table == table
        assert words in error.found

    @pytest.mark.parametrize("key", ["show_notebooks", "idle_shutdown", "reserved"])
    def test_a_general_key_below_a_heading_is_told_where_it_stands(self, key):
        error = refused(groups={"students": {key: "own"}})
        assert error.found.startswith(f"{key} holds for everybody: it stands above")

    def test_odd_ones_are_shown_safely(self):
        for key in ("", "a\nb", "\x1b[2J", "x" * 100_000, 'q"q'):
            error = refused(**{key: 1})
            assert "is not a key here" in error.found
            assert "\x1b" not in str(error)
            assert max(map(len, str(error).splitlines())) <= 80


class TestTables:
    @pytest.mark.parametrize("given", [1, "alice", ["alice"], True, math.nan, [{"alice": {}}]])
    @pytest.mark.parametrize("key", ["users", "groups"])
    def test_entries_are_a_table_of_tables(self, key, given):
        assert f"write  [{key}.NAME]" in refused(**{key: given}).found

    @pytest.mark.parametrize("given", [1, "x", [], [{}], True, dt.date(2026, 12, 1)])
    def test_an_entry_is_a_table(self, given):
        error = refused(users={"alice": given})
        assert "write  [users.alice]  and its keys below" in error.found

    @pytest.mark.parametrize("name", ["", " ", "a\nb", "\x00", "x" * 257])
    def test_names_can_be_names(self, name):
        assert "cannot be a name" in refused(users={name: {}}).found
        assert "is not a name" in refused(reserved=[{"devices": [1], "users": [name]}]).found

    def test_deep_tables_are_shown_as_tables(self):
        deep = {}
        for _ in range(5000):
            deep = {"a": deep}
        assert "a table" in refused(max_devices_per_user=deep).found
        assert "show_notebooks: a table is not one of" in refused(show_notebooks=deep).found
        assert "is not a key here" in refused(a=deep).found


class TestReserved:
    @pytest.mark.parametrize("given", [{}, {"devices": [1]}, 1, "6", [1], [[]], [{}, 1], True])
    def test_they_are_a_list_of_tables(self, given):
        assert refused(reserved=given).found.endswith("write  [[reserved]]")

    @pytest.mark.parametrize(
        "devices",
        [
            *[None, [], 6, "6", {}, True, [True], [-1], [1.0], ["6"], [""], ["GPU-"], ["gpu 1"]],
            *[["GPU-a b"], ["GPU-\n"], [[]], [{}], [10**9], [16**9000], [math.nan], ["H200"]],
        ],
        ids=lambda given: type(given).__name__,
    )
    def test_devices_are_indices_or_uuids(self, devices):
        table = {"users": ["alice"], "devices": devices}
        error = refused(
            reserved=[{key: value for key, value in table.items() if value is not None}]
        )
        assert error.table == "[[reserved]] number 1"
        assert error.found.startswith("devices")

    @pytest.mark.parametrize("given", ["alice", 1, {}, True, [1], [None], [["alice"]], [True]])
    @pytest.mark.parametrize("key", ["users", "groups"])
    def test_people_are_lists_of_names(self, key, given):
        error = refused(reserved=[{"devices": [1], key: given}])
        assert error.found.startswith(f"{key}: ")
        assert "name" in error.found

    @pytest.mark.parametrize("people", [{}, {"users": []}, {"users": [], "groups": []}])
    def test_a_reservation_for_nobody_is_a_slip(self, people):
        error = refused(reserved=[EVERYTHING["reserved"][0], {"devices": [1], **people}])
        assert error.table == "[[reserved]] number 2"
        assert "one of them has to say who may have these devices" in error.found
        assert "jupyter gpu hold" in error.found

    def test_the_same_twice_is_once(self):
        table = {"devices": [1, 1, "GPU-a", "GPU-a"], "users": ["alice", "alice"]}
        (found,) = rules(reserved=[table]).reserved
        assert found.devices == (1, "GPU-a")
        assert found.users == ("alice",)

    def test_names_that_mean_no_device_here_are_told(self):
        inventory = Inventory("nvml", devices=(Device(0, "GPU-0ab", "NVIDIA H200"),))
        tables = [
            {"devices": [0, 7, "GPU-0", "GPU-9"], "users": ["alice"]},
            {"devices": [7], "groups": ["staff"]},
        ]
        assert rules(reserved=tables).reserved_in_vain(inventory) == ("7", "GPU-9")
        assert Rules().reserved_in_vain(inventory) == ()


class TestWhichEntryCounts:
    def test_the_users_own_then_the_most_generous_group_then_the_general(self):
        found = rules(
            max_devices_per_user=2,
            default_wait="5s",
            groups={
                "students": {"max_devices_per_user": 1, "default_wait": "10m"},
                "labs": {"max_devices_per_user": "3/2", "default_wait": 0},
                "staff": {"max_devices_per_user": "none"},
                "guests": {},
            },
            users={
                "alice": {"max_devices_per_user": 0, "default_wait": 0},
                "bob": {"max_devices_per_user": "none"},
                "carol": {"default_wait": "1h"},
            },
        )

        def of(user, *groups):
            own = found.for_person(user, groups)
            return own.max_devices, own.default_wait

        assert of("dave") == (2, 5)
        assert of("dave", "unheard") == (2, 5)
        assert of("dave", "guests") == (2, 5)
        assert of("dave", "students") == (1, 600)  # a group's is below the general one
        assert of("dave", "labs") == (Fraction(3, 2), 0)
        assert of("dave", "students", "labs") == (Fraction(3, 2), 600)
        assert of("dave", "students", "staff") == (None, 600)
        assert of("alice", "staff") == (0, 0)
        assert of("bob", "students") == (None, 600)
        assert of("carol", "students") == (1, 3600)

    def test_the_words_name_the_rule(self):
        found = rules(
            max_devices_per_user=0.5,
            groups={"students": {"max_devices_per_user": 1}, "s2": {"max_devices_per_user": 1}},
            users={"alice": {"max_devices_per_user": 0.3333333}},
        )

        def words(user, *groups):
            return found.for_person(user, groups).limit_words

        assert words("dave") == f"max_devices_per_user = 1/2 in {SOURCE}"
        assert words("dave", "s2", "students") == (
            f"max_devices_per_user = 1 for group students in {SOURCE}"
        )
        assert words("alice", "s2") == f"max_devices_per_user = 0.333333 for alice in {SOURCE}"

    def test_a_lifted_limit_has_no_words(self):
        found = rules(max_devices_per_user=1, users={"alice": {"max_devices_per_user": "none"}})
        assert found.for_person("alice", ()).limit_words is None
        assert found.limits_anyone
        assert not rules(users={"alice": {"max_devices_per_user": "none"}}).limits_anyone
        assert rules(groups={"staff": {"max_devices_per_user": 0}}).limits_anyone


class TestTheError:
    def test_it_tells_the_person_and_the_administrator(self):
        error = RulesError(SOURCE, "It is wrong.", table="[users.alice]", line=7)
        assert str(error) == (
            "No GPU is granted: the file of rules cannot be used.\n"
            f"  {SOURCE}, line 7, [users.alice]\n"
            "  It is wrong.\n"
            "Tell the administrator of this machine, who can mend it."
        )
        assert isinstance(error, GPUError)
        assert isinstance(error, ValueError)
        assert error.exit_code == 1

    def test_its_lines_are_short_and_a_command_stays_in_one_piece(self):
        command = f"  sudo chmod 644 /{'a' * 90} /b"
        error = RulesError(SOURCE, f"{'word ' * 40}\n{command}")
        lines = str(error).splitlines()
        assert f"  {command}" in lines
        assert all(len(line) <= 80 for line in lines if "sudo" not in line)

    def test_it_shows_no_control_characters(self):
        text = str(RulesError("/etc/\x1b[2J\nx", "It is wrong."))
        assert "\x1b" not in text
        assert len(text.splitlines()) == 4

    def test_the_line_can_come_later(self):
        error = replace_line(refused(users={"alice": 1}), 3)
        assert (error.line, error.source) == (3, SOURCE)
        assert f"{SOURCE}, line 3" in str(error)


def replace_line(error, line):
    found = error.at_line(line)
    assert (found.found, found.table) == (error.found, error.table)
    return found


KEY = st.sampled_from([*EVERYTHING, "devices", "alice"]) | st.text(max_size=5)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(KEY, ANYTHING, max_size=5))
def test_whatever_stands_in_it_is_read_or_refused_with_a_sentence(data):
    try:
        found = parse_rules(data, SOURCE)
    except RulesError as error:
        assert str(error).startswith("No GPU is granted: ")
        assert max(map(len, str(error).splitlines())) <= 80
    else:
        own = found.for_person("alice", ("staff",))
        assert (own.max_devices is None) == (own.limit_words is None)
        assert replace(found) == found
