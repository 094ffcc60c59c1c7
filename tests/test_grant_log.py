"""The log of grants on disk: who writes it, who is believed, and many who write at once."""

import dataclasses
import json
import os
import stat
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from fractions import Fraction

import pytest

from jupyter_gpu.adapters import grant_log
from jupyter_gpu.adapters.grant_log import LOG_DIRECTORY, GrantLog, still_alive
from jupyter_gpu.adapters.place import SYSTEM_DIRECTORY, Place, furnish
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.grants import Ended, Granted
from jupyter_gpu.core.leases import Owner, Record

A, B = "a" * 15, "b" * 15
OTHER = 65534
UID = os.geteuid()


@pytest.fixture
def place(lease_directory):
    lease_directory.mkdir()
    furnish(lease_directory)
    return Place(lease_directory, "given")


def record(lease=A, devices=1):
    uuids = tuple(f"GPU-{n}" for n in range(devices))
    owner = Owner("kernel", notebook="/home/alice/secret.ipynb", command="train.py")
    since = "2026-12-01T09:00:00+00:00"
    return Record(lease, owner, since, uuids=uuids, indices=tuple(range(devices)))


def path_of(place, uid=UID, suffix=""):
    return place.directory / "log" / f"grants-{uid}.jsonl{suffix}"


def own(log, since=None):
    return next(user.entries for user in log.read(since).users if user.uid == UID)


def test_what_is_noted_is_read(place):
    log = GrantLog(place)
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    log.granted(record(devices=2), Fraction(1, 4))
    log.ended(A, exact=True)
    log.ended(B, exact=False)
    grant, end, found = own(log)
    assert dataclasses.replace(grant, time=before) == Granted(
        A, before, ("GPU-0", "GPU-1"), (0, 1), Fraction(1, 4), "kernel"
    )
    assert (end, found) == (Ended(A, end.time), Ended(B, found.time, exact=False))
    assert before < grant.time <= end.time <= datetime.now(timezone.utc)
    (user,) = log.read().users
    assert (user.uid, log.read().exists) == (UID, True)


def test_nothing_in_it_names_a_notebook(place):
    GrantLog(place).granted(record())
    text = path_of(place).read_text()
    assert "secret" not in text
    assert "train" not in text


def test_who_finds_an_end_later_says_when_the_lease_was_last_seen(place):
    log = GrantLog(place)
    log.ended(A, exact=False, at=1_750_000_000.0)
    log.ended(B, exact=False, at=time.time() + 9999)  # nobody has seen the future
    log.ended(B, exact=False, at=float("nan"))
    log.ended(B, exact=False, at=1e300)
    first, *rest = own(log)
    assert first.time == datetime.fromtimestamp(1_750_000_000, timezone.utc)
    assert len(rest) == 3
    assert all(entry.time <= datetime.now(timezone.utc) for entry in rest)


def test_it_keeps_nothing_open(place):
    log = GrantLog(place)
    log.granted(record())
    before = os.listdir("/proc/self/fd")
    for _ in range(10):
        log.granted(record())
        log.read()
    assert os.listdir("/proc/self/fd") == before


def test_everybody_has_a_file_that_everybody_may_read(place, program, needs_root):
    before = os.umask(0o077)
    try:
        GrantLog(place).granted(record())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path_of(place).stat().st_mode) == 0o644
    assert stat.S_IMODE(path_of(place).parent.stat().st_mode) == 0o1777
    other = program(
        WRITE, environ={"BECOME": str(OTHER)}, arguments=["given", place.directory, B, 1]
    )
    assert other.read() == "done"
    users = GrantLog(place).read().users
    assert [(user.uid, user.entries[0].lease) for user in users] == [(0, A), (OTHER, B)]


# Notes a lease so often, and says when it is done; as another user once all is imported.
WRITE = """
import os, sys
from pathlib import Path
from jupyter_gpu.adapters import grant_log
from jupyter_gpu.adapters.grant_log import GrantLog
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.core.leases import Owner, Record
if "BECOME" in os.environ:
    os.setresuid(*[int(os.environ["BECOME"])] * 3)
kind, directory, lease, times = sys.argv[1:5]
grant_log.SIZE_LIMIT = int(sys.argv[5]) if sys.argv[5:] else grant_log.SIZE_LIMIT
log = GrantLog(Place(Path(directory), kind))
uuids = tuple(f"GPU-{n}-{n:032}" for n in range(8))
for _ in range(int(times)):
    log.granted(Record(lease, Owner("api"), "", uuids=uuids, indices=tuple(range(8))))
    log.ended(lease, exact=True)
print("done")
"""


def written_at_once(place, processes, times, *limit):
    writers = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", WRITE, "given", place.directory),
                *map(str, (f"{n:015x}", times, *limit)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(processes)
    ]
    assert {writer.communicate(timeout=120)[0] for writer in writers} == {"done\n"}


def test_of_fifty_processes_that_write_at_once_no_line_is_lost(place):
    written_at_once(place, 50, 20)
    lines = path_of(place).read_bytes().splitlines()
    assert len(lines) == 50 * 20 * 2
    assert {json.loads(line)["schema"] for line in lines} == {1}
    counts = {}
    for entry in own(GrantLog(place)):
        counts[entry.lease] = counts.get(entry.lease, 0) + 1
    assert counts == {f"{n:015x}": 40 for n in range(50)}


def test_a_file_that_has_grown_large_is_put_aside_once_however_many_notice(place):
    # Each round of all processes is larger than the limit, so the race comes again and again;
    # what is put aside twice over is gone, but never a file that has just begun.
    written_at_once(place, 8, 40, 60_000)
    kept = path_of(place, suffix=".1")
    assert kept.stat().st_size > 60_000
    assert path_of(place).stat().st_size <= 60_000 + 8 * 1024
    assert sorted(path.name for path in kept.parent.iterdir()) == [
        path_of(place).name,
        kept.name,
    ]


def test_who_notices_too_late_does_not_put_the_new_file_over_the_old(place):
    log = GrantLog(place)
    log.granted(record(A))
    directory_fd = os.open(place.directory / "log", os.O_RDONLY)
    late = os.open(path_of(place), os.O_WRONLY)
    path_of(place).rename(path_of(place, suffix=".1"))  # by another process
    log.granted(record(B))
    try:
        assert grant_log._put_aside(late, path_of(place).name, directory_fd)
        path_of(place).unlink()
        assert grant_log._put_aside(late, path_of(place).name, directory_fd)
    finally:
        os.close(late)
        os.close(directory_fd)
    assert [entry.lease for entry in parse(path_of(place, suffix=".1"))] == [A]


def test_what_was_put_aside_is_read_too(place, monkeypatch):
    log = GrantLog(place)
    log.granted(record(A))
    monkeypatch.setattr(grant_log, "SIZE_LIMIT", 10)
    log.granted(record(B))
    assert path_of(place, suffix=".1").exists()
    monkeypatch.undo()
    assert [entry.lease for entry in own(log)] == [A, B]


def test_while_another_puts_it_aside_the_line_still_finds_its_place(place, monkeypatch):
    import fcntl

    log = GrantLog(place)
    log.granted(record(A))
    monkeypatch.setattr(grant_log, "SIZE_LIMIT", 10)
    with path_of(place).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        log.granted(record(B))
    assert not path_of(place, suffix=".1").exists()
    assert [entry.lease for entry in parse(path_of(place))] == [A, B]


def parse(path):
    from jupyter_gpu.core.grants import parse_entries

    return parse_entries(path.read_bytes())


def test_a_name_to_put_it_aside_that_is_taken_loses_no_line(place, monkeypatch):
    log = GrantLog(place)
    log.granted(record(A))
    path_of(place, suffix=".1").mkdir()
    monkeypatch.setattr(grant_log, "SIZE_LIMIT", 10)
    log.granted(record(B))
    assert len(parse(path_of(place))) == 2


def test_the_machines_own_log_is_where_setup_makes_it_and_nowhere_else(lease_directory):
    assert GrantLog(Place(SYSTEM_DIRECTORY, "system")).directory == LOG_DIRECTORY
    place = Place(lease_directory / "run/jupyter-gpu", "system")
    log = GrantLog(place)
    assert log.directory == lease_directory / "var/log/jupyter-gpu"
    log.granted(record())
    assert not lease_directory.exists()
    log.directory.mkdir(parents=True)
    log.granted(record())
    assert len(own(log)) == 1


def test_without_a_log_a_reader_is_told_so(place, tmp_path):
    found = GrantLog(place).read()
    assert (found.exists, found.users) == (False, ())
    (place.directory / "log").write_text("")
    found = GrantLog(place).read()
    assert (found.exists, found.problems[0].endswith("Not a directory.")) == (False, True)


def put_there(path, what):
    path.parent.mkdir(exist_ok=True)
    if what == "link":
        path.symlink_to(path.with_name("elsewhere"))
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()


@pytest.mark.parametrize("what", ["link", "pipe", "directory"])
def test_what_stands_for_the_file_is_neither_followed_nor_in_the_way(place, what):
    put_there(path_of(place), what)
    log = GrantLog(place)
    log.granted(record())
    log.ended(A, exact=True)
    assert not path_of(place).with_name("elsewhere").exists()
    found = log.read()
    assert found.users[0].entries == ()
    assert "does not count: it is not a plain file" in found.problems[0]


@pytest.mark.parametrize("what", ["link", "file"])
def test_what_stands_for_the_directory_is_neither_followed_nor_in_the_way(place, what):
    elsewhere = place.directory / "elsewhere"
    elsewhere.mkdir()
    directory = place.directory / "log"
    directory.write_text("") if what == "file" else directory.symlink_to(elsewhere)
    GrantLog(place).granted(record())
    assert list(elsewhere.iterdir()) == []


def test_a_pipe_that_somebody_reads_keeps_nobody_waiting(place):
    put_there(path_of(place), "pipe")
    reader = os.open(path_of(place), os.O_RDONLY | os.O_NONBLOCK)
    try:
        GrantLog(place).granted(record())
        assert os.read(reader, 1) == b""  # nothing has come, and nobody writes any more
    finally:
        os.close(reader)


def test_a_file_of_somebody_else_is_neither_written_nor_believed(place, needs_root):
    log = GrantLog(place)
    log.granted(record())
    os.chown(path_of(place), OTHER, OTHER)
    size = path_of(place).stat().st_size
    log.granted(record(B))
    assert path_of(place).stat().st_size == size
    found = log.read()
    assert found.users[0].entries == ()
    assert found.problems == (f"{path_of(place)} does not count: it belongs to nobody.",)


def test_names_that_are_nobodys_are_left_alone(place):
    GrantLog(place).granted(record())
    for name in ("grants-.jsonl", "grants-01.jsonl", "grants-x.jsonl", "grants-1.jsonl.2", "notes"):
        (path_of(place).parent / name).write_text("")
    assert [user.uid for user in GrantLog(place).read().users] == [UID]


def test_a_full_disk_keeps_nobody_from_a_lease(place, monkeypatch):
    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    GrantLog(place).granted(record())
    monkeypatch.undo()
    assert path_of(place).read_bytes() == b""


def test_only_the_end_of_an_endless_file_is_read(place, monkeypatch):
    log = GrantLog(place)
    for _ in range(5):
        log.granted(record(A))
    log.ended(B, exact=True)
    monkeypatch.setattr(grant_log, "SIZE_LIMIT", 100)
    entries = own(log)
    assert 1 <= len(entries) < 6
    assert entries[-1].lease == B


def test_leases_that_ended_before_are_not_read(place):
    log = GrantLog(place)
    log.granted(record(A))
    log.ended(A, exact=True)
    log.granted(record(B))
    later = datetime.now(timezone.utc) + timedelta(seconds=1)
    assert [entry.lease for entry in own(log, later)] == [B]


def test_which_leases_go_on_is_asked_of_the_lock(place):
    log = GrantLog(place)
    with LeaseStore(place, write=True) as store:
        live, dead = store.new_claim(), store.new_claim()
        log.granted(record(live.id))
        log.granted(record(dead.id))
        log.granted(record(B))
        store.publish(dead, record(dead.id))
        dead.close()
        alive, seen = still_alive(place, log.read().users)
        live.close()
    assert alive == {live.id}
    assert seen.keys() == {dead.id}  # its record has not been swept yet
    assert abs(seen[dead.id] - datetime.now(timezone.utc)) < timedelta(minutes=1)


def test_a_record_of_somebody_else_says_nothing_about_a_lease(place, needs_root):
    log = GrantLog(place)
    log.granted(record(A))
    with LeaseStore(place, write=True) as store:
        claim = store.new_claim()
        store.publish(claim, record(A))
        claim.close()
    os.chown(place.directory / "records" / f"{A}.json", OTHER, OTHER)
    assert still_alive(place, log.read().users) == (frozenset(), {})


def test_without_a_lease_directory_nothing_goes_on(tmp_path):
    assert still_alive(Place(tmp_path / "none", "given"), ()) == (frozenset(), {})


def test_a_grant_costs_tens_of_microseconds(place):
    log, grant = GrantLog(place), record(devices=8)
    log.granted(grant)
    times = []
    for _ in range(200):
        began = time.perf_counter()
        log.granted(grant)
        times.append(time.perf_counter() - began)
    assert min(times) < 50e-6
