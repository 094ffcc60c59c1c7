"""The file of holds: who may change it, who is believed, and two who change it at once."""

import os
import stat
import subprocess
import sys
import threading

import pytest

from jupyter_gpu.adapters import holds_file
from jupyter_gpu.adapters.holds_file import HOLDS_DIRECTORY, change_holds, holds_path, read_holds
from jupyter_gpu.adapters.place import SYSTEM_DIRECTORY, Place, furnish
from jupyter_gpu.core.errors import StoreError, UsageError
from jupyter_gpu.core.holds import HOLDS_SIZE_LIMIT, Hold, Holds

SINCE = "2026-12-01T09:12:00+01:00"
FAN = Hold("GPU-3", 3, "fan", "root", SINCE)
OTHER = 65534


@pytest.fixture
def place(lease_directory):
    lease_directory.mkdir()
    furnish(lease_directory)
    return Place(lease_directory, "given")


def put(place, *holds):
    return change_holds(place, lambda before: before.changed(holds))


def test_without_a_file_or_a_directory_nothing_is_on_hold(place, tmp_path):
    assert read_holds(place) == Holds()
    assert read_holds(Place(tmp_path / "none", "given")) == Holds()


def test_what_was_put_on_hold_is_read_and_goes_again(place):
    assert put(place, FAN) == Holds()
    assert read_holds(place) == Holds((FAN,))
    assert change_holds(place, lambda holds: holds.without([FAN])) == Holds((FAN,))
    assert read_holds(place) == Holds()


def test_the_machines_own_place_keeps_it_where_it_outlives_a_restart(lease_directory):
    assert holds_path(Place(SYSTEM_DIRECTORY, "system")) == HOLDS_DIRECTORY / "holds.json"
    root = lease_directory
    place = Place(root / "run/jupyter-gpu", "system")
    place.directory.mkdir(parents=True)
    assert holds_path(place) == root / "var/lib/jupyter-gpu/holds.json"
    if os.geteuid() == 0:
        put(place, FAN)
        assert read_holds(place) == Holds((FAN,))
        assert stat.S_IMODE(holds_path(place).parent.stat().st_mode) == 0o755


def test_a_directory_that_does_not_exist_is_made(lease_directory):
    put(Place(lease_directory, "given"), FAN)
    assert (lease_directory / "records").is_dir()
    assert read_holds(Place(lease_directory, "given")).on("GPU-3") == FAN


def test_everybody_may_read_it_and_nothing_is_left_beside_it(place):
    before = os.umask(0o077)
    try:
        put(place, FAN)
        put(place, Hold("GPU-1", 1, "ECC", "root", SINCE))
    finally:
        os.umask(before)
    assert stat.S_IMODE(holds_path(place).stat().st_mode) == 0o644
    assert stat.S_IMODE((place.directory / "holds.lock").stat().st_mode) == 0o600
    names = {path.name for path in place.directory.iterdir()}
    assert names == {"lock", "layout", "records", "holds.json", "holds.lock"}


def test_what_a_change_raises_leaves_everything_as_it_was(place):
    put(place, FAN)

    def refuse(holds):
        raise UsageError("no")

    with pytest.raises(UsageError):
        change_holds(place, refuse)
    assert read_holds(place) == Holds((FAN,))
    assert put(place, FAN) == Holds((FAN,))  # and the lock is free again


def replace_by(path, what):
    path.unlink(missing_ok=True)
    if what == "link":
        path.with_name("real").write_text(Holds((FAN,)).to_json())
        path.symlink_to("real")
    elif what == "directory":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(what)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("link", "is a symbolic link"),
        ("directory", "is not a plain file"),
        ("pipe", "is not a plain file"),
        (b" " * (HOLDS_SIZE_LIMIT + 1), "is too large"),
        (b"", "is not what  jupyter gpu hold  has written"),
        (b"\xff\xfe", "is not what"),
        (b"[" * 100_000, "is not what"),
        (b'{"schema": 1, "holds": [{"uuid": "GPU-3"}]}', "is not what"),
    ],
)
def test_what_is_not_believed_is_a_sentence_and_never_written_over(place, what, why):
    replace_by(holds_path(place), what)
    found = read_holds(place)
    assert found.entries == ()
    begin = f"Nothing is granted, because {holds_path(place)} {why}"
    assert found.problem.startswith(begin)
    assert found.problem.endswith(": mend or remove it.")
    before = holds_path(place).lstat()
    with pytest.raises(StoreError, match="mend or remove it"):
        put(place, FAN)
    assert os.path.samestat(holds_path(place).lstat(), before)


def test_a_link_that_leads_nowhere_is_not_followed_either(place):
    holds_path(place).symlink_to(place.directory / "made-by-following")
    assert "symbolic link" in read_holds(place).problem
    with pytest.raises(StoreError):
        put(place, FAN)
    assert not (place.directory / "made-by-following").exists()


def test_a_file_of_somebody_else_is_not_believed(place, needs_root):
    put(place, FAN)
    os.chown(holds_path(place), OTHER, OTHER)
    assert "belongs to nobody" in read_holds(place).problem
    os.chown(place.directory, OTHER, OTHER)  # now it is the owner's
    assert read_holds(place) == Holds((FAN,))
    os.chown(holds_path(place), 0, 0)
    assert read_holds(place) == Holds((FAN,))


def test_what_cannot_be_read_is_a_sentence(place, program, needs_root):
    put(place, FAN)
    holds_path(place).chmod(0o600)
    reader = program(READ, uid=OTHER, arguments=[place.directory])
    assert "cannot be read: Permission denied" in reader.read()


READ = """
import sys
from pathlib import Path
from jupyter_gpu.adapters.holds_file import read_holds
from jupyter_gpu.adapters.place import Place
print(read_holds(Place(Path(sys.argv[1]), "given")))
"""
# One hold for each of its other arguments; says what happened.
PUT = """
import sys
from pathlib import Path
from jupyter_gpu.adapters.holds_file import change_holds
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.holds import Hold
kind, directory, *uuids = sys.argv[1:]
try:
    for uuid in uuids:
        hold = Hold(uuid, None, "fan", None, "2026-12-01T09:12:00+01:00")
        change_holds(Place(Path(directory), kind), lambda holds: holds.changed([hold]))
except StoreError as error:
    print(error)
else:
    print("done")
"""


def test_only_root_changes_the_machines_own(lease_directory, program, needs_root):
    directory = lease_directory / "run/jupyter-gpu"
    directory.mkdir(parents=True)
    other = program(PUT, uid=OTHER, arguments=["system", directory, "GPU-1"])
    assert other.read().startswith("Only root may take devices of this machine out of service")
    assert not (lease_directory / "var").exists()


def test_only_its_owner_and_root_change_another(place, program, needs_root):
    other = program(PUT, uid=OTHER, arguments=["given", place.directory, "GPU-1"])
    assert other.read().startswith("Only root may take devices out of service here")
    put(place, FAN)  # root makes the lock file, and the owner can use it all the same
    for path in (place.directory, *place.directory.iterdir()):
        os.chown(path, OTHER, OTHER)
    (place.directory / "holds.lock").unlink()
    third = program(PUT, uid=OTHER - 1, arguments=["given", place.directory, "GPU-1"])
    assert third.read().startswith("Only nobody and root may take devices")
    put(place, Hold("GPU-2", 2, "ECC", "root", SINCE))
    owner = program(PUT, uid=OTHER, arguments=["given", place.directory, "GPU-1"])
    assert owner.read() == "done"
    assert [hold.uuid for hold in read_holds(place).entries] == ["GPU-3", "GPU-2", "GPU-1"]
    put(place, Hold("GPU-0", 0, "ECC", "root", SINCE))
    assert len(read_holds(place).entries) == 4


def test_of_several_at_once_none_loses_a_hold(place):
    names = [[f"GPU-{process}-{n}" for n in range(10)] for process in range(8)]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", PUT, "given", str(place.directory), *some],
            stdout=subprocess.PIPE,
            text=True,
        )
        for some in names
    ]
    assert [writer.communicate(timeout=60)[0] for writer in writers] == ["done\n"] * 8
    found = {hold.uuid for hold in read_holds(place).entries}
    assert found == {name for some in names for name in some}


def test_who_goes_on_changing_it_keeps_another_waiting_only_so_long(place, monkeypatch):
    monkeypatch.setattr(holds_file, "_PATIENCE_SECONDS", 0.05)
    inside, done = threading.Event(), threading.Event()

    def slow(holds):
        inside.set()
        assert done.wait(10)
        return holds.changed([FAN])

    first = threading.Thread(target=change_holds, args=(place, slow))
    first.start()
    assert inside.wait(10)
    try:
        with pytest.raises(StoreError, match="goes on changing"):
            put(place, Hold("GPU-1", 1, "ECC", "root", SINCE))
    finally:
        done.set()
        first.join()
    assert read_holds(place) == Holds((FAN,))


@pytest.mark.parametrize("what", ["link", "directory", "pipe"])
def test_what_stands_for_the_lock_file_is_not_followed(place, what):
    replace_by(place.directory / "holds.lock", what)
    with pytest.raises(StoreError, match=r"is not a plain file|cannot be written"):
        put(place, FAN)
    assert read_holds(place) == Holds()


def test_a_full_list_is_refused_before_nobody_believes_it(place):
    long = [Hold(f"GPU-{n}", n, "é" * 200, "root", SINCE) for n in range(300)]
    with pytest.raises(StoreError, match="would be too large"):
        put(place, *long)
    assert read_holds(place) == Holds()


def test_a_directory_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be made|cannot be opened|not a directory"):
        put(Place(tmp_path / "file" / "leases", "given"), FAN)


def test_a_directory_of_the_machine_that_is_a_link_is_not_followed(lease_directory, needs_root):
    place = Place(lease_directory / "run/jupyter-gpu", "system")
    place.directory.mkdir(parents=True)
    elsewhere = lease_directory / "elsewhere"
    elsewhere.mkdir()
    holds_path(place).parent.parent.mkdir(parents=True)
    holds_path(place).parent.symlink_to(elsewhere)
    with pytest.raises(StoreError, match="cannot be written"):
        put(place, FAN)
    assert list(elsewhere.iterdir()) == []


def test_where_the_lease_directory_is_none_there_are_no_holds(tmp_path):
    (tmp_path / "leases").write_text("a file")
    assert read_holds(Place(tmp_path / "leases", "given")) == Holds()
