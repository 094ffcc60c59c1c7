import json

from support_cli import device, inventory, kernel, lease, overview, using, uuid, waiter

from jupyter_gpu.core.answers import map_answer, status_answer, who_answer
from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.visibility import visible

DEVICE_KEYS = set(
    "index uuid name kind parent profile pci_bus_id memory_total_bytes memory_used_bytes "
    "utilization_percent temperature_celsius power_watts processes leases problem".split()
)
LEASE_KEYS = set("uuids indices share user kind kernel_id notebook pids since state".split())


def test_status_has_the_keys_that_others_rely_on():
    answer = json.loads(json.dumps(status_answer(overview(leases=[lease("a", (1, 0))]))))
    assert answer["schema"] == 1
    assert answer["machine"] == {
        "source": "nvml",
        "driver": "580.159.04",
        "cuda": "13.0",
        "problem": None,
    }
    assert set(answer["devices"][0]) >= DEVICE_KEYS
    held = answer["devices"][0]["leases"][0]
    assert set(held) >= LEASE_KEYS
    assert (held["indices"], held["uuids"]) == ([1, 0], [uuid(1), uuid(0)])
    assert answer["devices"][2]["leases"] == []
    assert "process" not in answer
    assert "lease" not in answer


def test_what_is_unknown_is_null():
    bare = device(
        0,
        memory_total_bytes=None,
        memory_used_bytes=None,
        utilization_percent=None,
        processes=using(99),
    )
    row = status_answer(overview(inventory(bare)))["devices"][0]
    for key in ("memory_total_bytes", "memory_used_bytes", "utilization_percent", "power_watts"):
        assert row[key] is None
    assert row["processes"] == [{"pid": 99, "memory_bytes": None, "user": None, "command": None}]


def test_a_process_that_exists_here_is_named():
    busy = inventory(device(0, processes=using(99, 5)))
    row = status_answer(overview(busy, seen=[(99, "bob", "python x.py")]))["devices"][0]
    assert row["processes"] == [
        {"pid": 99, "memory_bytes": 5, "user": "bob", "command": "python x.py"}
    ]


def test_a_kernel_that_asks_gets_its_process_and_its_lease():
    asked = overview(
        leases=[lease("a", (3, 1))],
        process=kernel(launched=None, now="1", state="frozen", in_force=(3, 1), lease_id="a" * 15),
    )
    answer = status_answer(asked)
    assert answer["lease"]["indices"] == [3, 1]
    process = answer["process"]
    assert process["launched_with"] is None
    assert process["set_now"] == "1"
    assert process["state"] == "frozen"
    assert process["frozen_by"] is None
    assert process["in_force"] == [
        {"ordinal": 0, "index": 3, "uuid": uuid(3)},
        {"ordinal": 1, "index": 1, "uuid": uuid(1)},
    ]
    assert status_answer(overview(process=kernel()))["process"]["in_force"] is None
    assert status_answer(overview(process=kernel()))["lease"] is None


def test_what_the_start_left_to_say_is_one_list():
    asked = overview(process=kernel(notices=("No GPU.",), missing=("PyTorch is missing.",)))
    assert status_answer(asked)["process"]["notices"] == ["No GPU.", "PyTorch is missing."]


def test_who_lists_leases_and_numbers_those_who_wait():
    answer = who_answer(
        overview(leases=[lease("a", (0,))], waiters=(waiter("b", gpus=2), waiter("c")))
    )
    assert [row["indices"] for row in answer["leases"]] == [[0]]
    assert answer["leases"][0]["memory_used_bytes"] == 0
    assert [row["position"] for row in answer["queue"]] == [1, 2]
    assert set(answer["queue"][0]) >= {"position", "user", "request", "since"}
    assert answer["queue"][0]["request"]["gpus"] == 2


def test_map_has_no_answer_of_the_driver_where_there_is_no_machine():
    assert map_answer(visible("1", inventory()))["cuinit"] == 0
    answer = map_answer(visible("", Inventory("none")))
    assert (answer["value"], answer["devices"], answer["cuinit"]) == ("", [], None)
