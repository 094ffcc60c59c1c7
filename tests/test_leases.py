"""Records: what a holder says about itself, read with suspicion."""

import dataclasses
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jupyter_gpu.core.layout import QUEUE, device_range, ticket_byte
from jupyter_gpu.core.leases import (
    Holdings,
    Lease,
    Owner,
    ProcessRef,
    Record,
    Waiter,
    clean,
)
from jupyter_gpu.core.request import Request

ID = "0123456789abcde"
RECORD = Record(
    id=ID,
    owner=Owner(
        "kernel",
        kernel_id="k-1",
        notebook="/home/ada/train.ipynb",
        command="python -m ipykernel",
        processes=(ProcessRef(42, 1000, 4026531836), ProcessRef(43)),
        keeper=ProcessRef(7, 900, 4026531836),
        idle_since="2026-12-01T10:00:00+00:00",
    ),
    since="2026-12-01T09:12:00+00:00",
    request=Request(gpus=2, model="H200", min_free_memory_bytes=2**30),
    uuids=("GPU-b", "GPU-a"),
    indices=(1, 0),
    ancestors=("f" * 15,),
    ticket=5,
    could_use=("GPU-a", "GPU-b"),
    because=("model H200",),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=12,
)
NEARLY = st.fixed_dictionaries(
    {
        "schema": st.just(1),
        "id": st.just(ID),
        "kind": st.sampled_from(["kernel", "command", "api"]),
    },
    optional=dict.fromkeys(
        (
            *("kernel_id", "notebook", "command", "since", "request", "uuids", "indices"),
            *("ancestors", "ticket", "could_use", "because", "processes", "keeper", "idle_since"),
        ),
        JSON,
    ),
)


def read(**changes):
    return Record.from_json(json.dumps({**json.loads(RECORD.to_json()), **changes}), ID)


def test_a_record_survives_the_way_through_its_file():
    assert Record.from_json(RECORD.to_json(), ID) == dataclasses.replace(
        RECORD, request=Request.parse(RECORD.request.as_options())
    )


def test_a_record_is_one_json_object_of_schema_1():
    assert json.loads(RECORD.to_json())["schema"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "1",
        '"text"',
        "{}",
        '{"schema": 2}',
        json.dumps({"schema": 1, "id": "f" * 15, "kind": "kernel"}),
        json.dumps({"schema": 1, "id": ID, "kind": "king"}),
        json.dumps({"schema": 1, "id": ID, "kind": ["kernel"]}),
        json.dumps({"schema": 1, "id": ID, "kind": {}}),
        json.dumps({"schema": 1, "id": ID}),
        "NaN",
        '{"schema": 1' + "0" * 5000 + "}",
    ],
)
def test_what_is_not_the_record_of_this_lease_is_a_value_error(text):
    with pytest.raises(ValueError):
        Record.from_json(text, ID)


@given(JSON)
def test_any_json_is_a_record_or_a_value_error(data):
    try:
        Record.from_json(json.dumps(data), ID)
    except ValueError:
        return


@given(st.text())
def test_any_text_is_a_record_or_a_value_error(text):
    with pytest.raises(ValueError):
        Record.from_json(text, ID)


@given(NEARLY)
@example({"schema": 1, "id": ID, "kind": "api", "ticket": 10**30, "request": {"wait": 10**400}})
@example({"schema": 1, "id": ID, "kind": "api", "request": {"min_free_memory": 10**400}})
@example({"schema": 1, "id": ID, "kind": "api", "request": {"gpus": 10**4000}})
@example({"schema": 1, "id": ID, "kind": "api", "request": {"devices": ["GPU-\x1b[31m"]}})
@example({"schema": 1, "id": ID, "kind": "api", "request": {"model": "\ud800"}})
@example({"schema": 1, "id": ID, "kind": "api", "processes": [{"pid": 10**4000, "start": -1}]})
@example({"schema": 1, "id": ID, "kind": "api", "uuids": ["\ud800", "x" * 9999, 7]})
def test_whatever_a_record_says_can_be_shown_and_looked_up(data):
    record = Record.from_json(json.dumps(data), ID)
    shown = [
        *(record.since, record.owner.kernel_id, record.owner.notebook, record.owner.command),
        *(*record.uuids, *record.could_use, *record.because, record.request.in_words()),
    ]
    assert all(text is None or (text.isprintable() and len(text) < 70_000) for text in shown)
    "".join(text or "" for text in shown).encode()
    for uuid in record.uuids:
        assert device_range(None, uuid).start >= 0
    if record.ticket is not None:
        assert ticket_byte(record.ticket).start < QUEUE.start + QUEUE.length
    assert all(process.pid > 0 for process in record.owner.processes)
    json.dumps(Lease(record, "ada", "active").as_json())
    json.dumps(Waiter(record, None).as_json(1))


@pytest.mark.parametrize("ticket", [-1, 1 << 40, 10**30, "5", 5.0, True, None])
def test_a_ticket_outside_the_queue_is_no_ticket(ticket):
    assert read(ticket=ticket).ticket is None


@pytest.mark.parametrize(
    ("name", "value", "read_as"),
    [
        ("uuids", "GPU-a", ()),
        ("uuids", ["GPU-a", 1, None, ["GPU-b"], "GPU-c"], ("GPU-a", "GPU-c")),
        ("indices", [0, True, "1", 2.0, 3, 1 << 70], (0, 3)),
        ("ancestors", ["../../x", "a" * 15, "A" * 15], ("a" * 15,)),
        ("because", {"a": 1}, ()),
        ("could_use", None, ()),
    ],
)
def test_of_a_list_only_what_has_the_right_form_is_read(name, value, read_as):
    assert getattr(read(**{name: value}), name) == read_as


def test_of_an_endless_list_only_a_part_is_read():
    assert len(read(uuids=["GPU-a"] * 9999).uuids) == 1024


@pytest.mark.parametrize("row", [None, 1, "1", {}, {"pid": 0}, {"pid": -4}, {"pid": True}, []])
def test_what_is_no_process_is_left_out(row):
    assert read(processes=[row], keeper=row).owner.processes == ()
    assert read(processes=[row], keeper=row).owner.keeper is None


@pytest.mark.parametrize(
    "request_", [None, "1", [], {"gpus": "many"}, {"unknown": 1}, {"gpus": {"a": []}}]
)
def test_a_request_that_cannot_be_read_is_one_gpu(request_):
    assert read(request=request_).request == Request()


def test_control_characters_do_not_reach_a_terminal():
    record = read(notebook="\x1b]0;evil\x07\n\u202e.ipynb", request={"model": "\x1b[31mH200"})
    assert record.owner.notebook == "?]0;evil???.ipynb"
    assert record.request.in_words() == "1 GPU of model ?[31mH200"


def test_long_text_is_cut():
    assert clean("a" * 2000) == "a" * 1023 + "…"
    assert clean("a" * 1024) == "a" * 1024


def test_a_lease_answers_in_the_shape_of_the_interface():
    lease = Lease(RECORD, "ada", "draining", (42,), "kept by process 42 (python)")
    assert lease.as_json() == {
        "id": ID,
        "uuids": ["GPU-b", "GPU-a"],
        "indices": [1, 0],
        "share": 1.0,
        "user": "ada",
        "kind": "kernel",
        "kernel_id": "k-1",
        "notebook": "/home/ada/train.ipynb",
        "command": "python -m ipykernel",
        "pids": [42],
        "since": "2026-12-01T09:12:00+00:00",
        "state": "draining",
        "idle_since": None,
        "because": ["model H200"],
        "request": {"gpus": 2, "min_free_memory": "1GiB", "model": "H200"},
        "origin": None,
        "caps": [],
        "note": "kept by process 42 (python)",
    }


def test_an_active_lease_of_an_idle_kernel_is_idle_and_a_draining_one_is_draining():
    assert Lease(RECORD, "ada", "active").state == "idle"
    assert Lease(RECORD, "ada", "draining").state == "draining"
    assert Lease(RECORD, "ada", "active").as_json()["idle_since"] == RECORD.owner.idle_since
    assert Lease(read(idle_since=None), "ada", "active").state == "active"


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("2026-12-01T10:00:00+00:00", "2026-12-01T10:00:00+00:00"),
        ("2026-12-01T12:00:00.123456+02:00", "2026-12-01T10:00:00+00:00"),
        ("2026-12-01T10:00:00", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("2026-13-01T10:00:00+00:00", None),
        ("yesterday", None),
        ("", None),
        ("2" * 100, None),
        (1764583200, None),
        (True, None),
        ({}, None),
        (None, None),
    ],
)
def test_of_a_time_only_what_is_one_is_read(written, read_as):
    assert read(idle_since=written).owner.idle_since == read_as


def test_an_unknown_time_is_null():
    assert Lease(read(since=None), "ada", "active").as_json()["since"] is None


def test_a_waiter_answers_in_the_shape_of_the_interface():
    row = Waiter(RECORD, "ada", stalled=True).as_json(3)
    assert row["position"] == 3
    assert row["user"] == "ada"
    assert row["request"] == {"gpus": 2, "model": "H200", "min_free_memory": "1GiB"}
    assert row["since"] == "2026-12-01T09:12:00+00:00"
    assert row["stalled"]


def test_holdings_tell_who_claims_a_device():
    lease = Lease(RECORD, "ada", "active")
    holdings = Holdings(leases=(lease,))
    assert holdings.on("GPU-a") == (lease,)
    assert holdings.on("GPU-z") == ()
    assert holdings.on(None) == ()
