"""The record files."""

import dataclasses
import json
import os
import stat

import pytest

from jupyter_gpu.adapters.place import Place, furnish, open_directory
from jupyter_gpu.adapters.records import RecordDirectory, looks, records_path
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.layout import lease_byte, ticket_byte
from jupyter_gpu.core.leases import RECORD_SIZE_LIMIT, Owner, Record

A, B = "a" * 15, "b" * 15


@pytest.fixture
def place(lease_directory):
    lease_directory.mkdir()
    furnish(lease_directory)
    return Place(lease_directory, "given")


@pytest.fixture
def opened():
    """A function that opens the records of a place."""
    made = []

    def open_records(place):
        fd = open_directory(place, create=False)
        made.append(RecordDirectory(place, fd))
        os.close(fd)
        return made[-1]

    yield open_records
    for one in made:
        one.close()


@pytest.fixture
def records(place, opened):
    return opened(place)


def record(lease_id=A, **facts):
    return Record(id=lease_id, owner=Owner("api", **facts), since="2026-12-01T09:00:00+00:00")


def files(place):
    return sorted(os.listdir(records_path(place)))


def test_what_was_written_is_read(records):
    records.write(record(command="python"))
    found = records.read(A)
    assert found.record == record(command="python")
    assert found.uid == os.getuid()


def test_a_time_that_has_not_come_yet_is_not_believed(records):
    records.write(record(idle_since="2001-01-01T00:00:00+00:00"))
    assert records.read(A).record.owner.idle_since == "2001-01-01T00:00:00+00:00"
    records.write(record(idle_since="2999-01-01T00:00:00+00:00", command="python"))
    assert records.read(A).record == record(command="python")


def test_a_record_that_is_not_there_is_none(records):
    assert records.read(A) is None


def test_a_record_is_replaced_in_one_step_and_leaves_nothing_beside_it(records, place):
    for number in range(3):
        records.write(record(command=str(number)))
    assert files(place) == [f"{A}.json"]
    assert records.read(A).record.owner.command == "2"


def test_everybody_may_read_a_record_and_only_its_owner_write_it(records, place):
    old = os.umask(0o077)
    try:
        records.write(record())
    finally:
        os.umask(old)
    mode = (records_path(place) / f"{A}.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o644


def test_a_notebook_with_a_name_that_is_not_utf8_can_be_recorded(records):
    records.write(record(notebook="/home/ada/\udce4.ipynb"))
    assert records.read(A).record.owner.notebook == "/home/ada/?.ipynb"


def test_a_removed_record_is_gone_and_removing_it_again_does_nothing(records, place):
    records.write(record())
    records.remove(A)
    records.remove(A)
    assert files(place) == []


def test_a_sign_of_life_shows_in_the_time(records, place):
    records.write(dataclasses.replace(record(), ticket=7))
    path = records_path(place) / "waiting-7.json"
    os.utime(path, (5, 5))
    assert records.read_waiter(7).touched == 5
    records.touch_waiter(7)
    assert records.read_waiter(7).touched > 1e9


def test_a_sign_of_life_of_a_record_that_is_gone_does_nothing(records):
    records.touch_waiter(7)


def put(place, data, name=f"{A}.json"):
    path = records_path(place) / name
    path.write_bytes(data)
    return path


GOOD = record().to_json().encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:-5],
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"schema":' * 6000,
        record(B).to_json().encode(),
        GOOD + b" " * RECORD_SIZE_LIMIT,
        b"0" * 60_000,
    ],
)
def test_what_is_no_record_of_this_lease_is_none(place, records, data):
    put(place, data)
    assert records.read(A) is None


def test_a_huge_file_is_not_read(place, records):
    path = put(place, GOOD)
    os.truncate(path, 100 * 2**20)
    assert records.read(A) is None


def test_no_link_is_followed(place, records, tmp_path):
    (tmp_path / "real").write_bytes(GOOD)
    (records_path(place) / f"{A}.json").symlink_to(tmp_path / "real")
    assert records.read(A) is None


def test_a_pipe_is_not_waited_for(place, records):
    os.mkfifo(records_path(place) / f"{A}.json")
    assert records.read(A) is None


def test_a_directory_in_the_place_of_a_record_is_a_sentence(place, records):
    (records_path(place) / f"{A}.json").mkdir()
    assert records.read(A) is None
    with pytest.raises(StoreError, match=r"a record cannot be written to .*/records: Is a dir"):
        records.write(record())
    assert files(place) == [f"{A}.json"]


def test_without_a_directory_readers_find_nothing_and_writers_get_a_sentence(
    place, opened, tmp_path, monkeypatch
):
    records_path(place).rmdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{A}.json").write_text("not ours")
    records = opened(place)
    assert records.read(A) is None
    assert records.dead_candidates() == ()
    assert records.recent_devices("a.ipynb") == ()
    records.touch_waiter(7)
    records.remove(A)
    records.remember_devices("a.ipynb", ("g1",))
    with pytest.raises(StoreError, match="it is missing or is not a directory"):
        records.write(record())
    assert (tmp_path / f"{A}.json").read_text() == "not ours"


def test_closing_twice_does_nothing_more(place, opened):
    records = opened(place)
    records.close()
    records.close()
    assert records.read(A) is None


def test_files_to_sweep_are_records_and_what_a_killed_writer_left(place, records):
    names = [f"{A}.json", f".{A}.json.0123abcd", f".{B}.json.01234567", "waiting-12.json"]
    names.append(f"{A}.notebook")
    for name in (*names, "recent-0.json", ".recent-0.json.01234567", "notes", "x.json", "..json"):
        put(place, b"", name)
    found = records.dead_candidates()
    assert sorted(one.name for one in found) == sorted(names)
    assert {one.alive for one in found} == {lease_byte(A), lease_byte(B), ticket_byte(12)}


def test_of_many_files_some_are_drawn_so_that_each_has_its_turn(place, records):
    for number in range(300):
        put(place, b"", f"{number:015x}.json")
    seen = set()
    for _ in range(400):
        drawn = records.dead_candidates()
        assert len(drawn) == 64
        seen.update(drawn)
        if len(seen) == 300:
            return
    pytest.fail(f"only {len(seen)} had their turn")


def test_what_a_notebook_had_last_time_is_remembered(place, records, opened):
    records.remember_devices("a.ipynb", ("g2", "g1"))
    records.remember_devices("b.ipynb", ("g3",))
    assert opened(place).recent_devices("a.ipynb") == ("g2", "g1")
    assert records.recent_devices("c.ipynb") == ()


def test_only_the_latest_hundred_notebooks_are_remembered(records):
    for number in range(105):
        records.remember_devices(f"{number}.ipynb", ("g1",))
    records.remember_devices("5.ipynb", ("g2",))
    assert records.recent_devices("4.ipynb") == ()
    assert records.recent_devices("5.ipynb") == ("g2",)
    assert records.recent_devices("104.ipynb") == ("g1",)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "[" * 50_000, '{"a.ipynb": 3}', '{"a.ipynb": [4, null]}']
)
def test_a_spoilt_memory_is_no_memory(place, records, text):
    put(place, text.encode(), f"recent-{os.getuid()}.json")
    assert records.recent_devices("a.ipynb") == ()
    records.remember_devices("a.ipynb", ("g1",))
    assert records.recent_devices("a.ipynb") == ("g1",)


def test_records_stand_where_the_path_says(place, records):
    records.write(record())
    assert json.loads((records_path(place) / f"{A}.json").read_text())["id"] == A


def test_whether_a_waiter_looks_is_seen_without_opening_the_directory(place, records):
    records.write(dataclasses.replace(record(), ticket=7))
    assert looks(place, 7)
    assert records.looks(7)
    assert not looks(place, 8)
    os.utime(records_path(place) / "waiting-7.json", (5, 5))
    assert not looks(place, 7)
    assert not records.looks(7)
    records.touch_waiter(7)
    assert looks(place, 7)
