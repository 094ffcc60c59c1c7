"""The lease directory: where it is, opening it safely, and how far it can be trusted."""

import os
import stat
from pathlib import Path

import pytest

from jupyter_gpu.adapters import place as places
from jupyter_gpu.adapters.place import (
    Place,
    filesystem_type,
    find_place,
    furnish,
    open_directory,
    open_lock,
    safety,
)
from jupyter_gpu.core.errors import StoreError


@pytest.fixture
def place(lease_directory):
    return Place(lease_directory, "given")


def opened(place, *, write=True, filesystem=filesystem_type):
    """Open the lock file as a store does, close it again, and return whether it was there."""
    directory = open_directory(place, create=write)
    if directory is None:
        return False
    try:
        fd = open_lock(place, directory, write=write, filesystem=filesystem)
    finally:
        os.close(directory)
    if fd is not None:
        os.close(fd)
    return fd is not None


def modes(directory):
    names = ("lock", "records", "layout")
    return [oct(stat.S_IMODE((directory / name).lstat().st_mode)) for name in names]


def test_the_environment_names_the_place_for_real_and_simulated_machines():
    given = {"JUPYTER_GPU_LEASE_DIR": "/somewhere"}
    for simulated in (True, False):
        assert find_place(given, simulated=simulated) == Place(Path("/somewhere"), "given")


def test_a_relative_place_is_refused_because_every_program_would_mean_another(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    found = find_place({"JUPYTER_GPU_LEASE_DIR": "leases"}, simulated=False)
    with pytest.raises(StoreError, match="not an absolute path"):
        open_directory(found, create=True)
    assert os.listdir(tmp_path) == []


def test_a_simulated_machine_has_a_place_for_each_user():
    found = find_place({}, simulated=True)
    assert found.kind == "simulated"
    assert found.directory.name == f"jupyter-gpu-simulated-{os.getuid()}"


def test_what_setup_has_made_comes_before_what_all_users_share(monkeypatch, tmp_path):
    monkeypatch.setattr(places, "SYSTEM_DIRECTORY", tmp_path / "run")
    monkeypatch.setattr(places, "SHARED_DIRECTORY", tmp_path / "shm")
    assert find_place({}, simulated=False) == Place(tmp_path / "shm", "shared")
    (tmp_path / "run").mkdir()
    assert find_place({}, simulated=False) == Place(tmp_path / "run", "system")


def test_a_reader_makes_nothing(place):
    assert not opened(place, write=False)
    assert not place.directory.exists()


def test_a_writer_makes_all_of_it_for_all_users_whatever_the_umask(place):
    old = os.umask(0o077)
    try:
        assert opened(place)
    finally:
        os.umask(old)
    assert stat.S_IMODE(place.directory.stat().st_mode) == 0o755
    assert modes(place.directory) == ["0o666", "0o1777", "0o644"]
    assert (place.directory / "layout").read_text() == "1\n"
    assert (place.directory / "lock").stat().st_size == 0


def test_making_it_leaves_nothing_beside_it(place):
    opened(place)
    assert [path.name for path in place.directory.parent.iterdir()] == ["leases"]
    assert sorted(path.name for path in place.directory.iterdir()) == ["layout", "lock", "records"]


def test_an_empty_directory_is_furnished(place):
    place.directory.mkdir()
    assert not opened(place, write=False)
    assert opened(place)
    assert opened(place, write=False)


def test_furnishing_leaves_what_is_there(place):
    place.directory.mkdir()
    (place.directory / "layout").write_text("7\n")
    furnish(place.directory)
    furnish(place.directory)
    assert (place.directory / "layout").read_text() == "7\n"


def test_the_lock_file_is_made_last(place, monkeypatch):
    """Whoever finds a lock file must find the rest."""
    place.directory.mkdir()
    (place.directory / "records").touch()
    (place.directory / "records").chmod(0o600)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(OSError, match="No space"):
        furnish(place.directory)
    assert [path.name for path in place.directory.iterdir()] == ["records"]


def test_two_who_make_it_at_the_same_time_find_one_lock_file(place, program):
    code = (
        "import os, sys; from pathlib import Path; from jupyter_gpu.adapters.place import *\n"
        "place = Place(Path(sys.argv[1]), 'given'); print('ready'); sys.stdin.readline()\n"
        "fd = open_lock(place, open_directory(place, create=True), write=True)\n"
        "print(os.fstat(fd).st_ino, Path(place.directory, 'records').is_dir())"
    )
    several = [program(code, arguments=[place.directory]) for _ in range(6)]
    for one in several:
        assert one.read() == "ready"
    for one in several:
        one.send("go")
    assert len({one.read() for one in several}) == 1


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: path.write_text("x"), "is not a directory: remove it"),
        (lambda path: path.symlink_to("nowhere"), "does not exist and could not be made"),
        (os.mkfifo, "is not a directory: remove it"),
    ],
)
def test_what_is_no_directory_is_a_sentence(place, make, sentence):
    make(place.directory)
    with pytest.raises(StoreError, match=sentence) as caught:
        opened(place)
    assert str(place.directory) in str(caught.value)


def test_a_place_below_a_file_is_a_sentence(lease_directory):
    lease_directory.write_text("x")
    below = Place(lease_directory / "leases", "given")
    with pytest.raises(StoreError, match=r"cannot be made: (Not a directory|File exists)"):
        opened(below)
    with pytest.raises(StoreError, match="is not a directory"):
        opened(below, write=False)


@pytest.mark.parametrize("kind", ["shared", "simulated"])
def test_where_anybody_may_make_names_no_link_is_followed(lease_directory, tmp_path, kind):
    lease_directory.symlink_to(tmp_path)
    with pytest.raises(StoreError, match="is a symbolic link: remove it"):
        opened(Place(lease_directory, kind))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_the_environment_names_may_be_a_link(place, tmp_path):
    place.directory.symlink_to(tmp_path)
    assert opened(place)
    assert (tmp_path / "lock").exists()


@pytest.mark.parametrize("name", ["lock", "layout"])
@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to("elsewhere"),
        lambda path: path.symlink_to("/dev/null"),
        os.mkfifo,
        lambda path: path.mkdir(),
    ],
)
def test_what_is_no_plain_file_is_a_sentence(place, name, make):
    opened(place)
    (place.directory / name).unlink()
    make(place.directory / name)
    for write in (True, False):
        with pytest.raises(StoreError, match=f"/{name} is not a plain file: remove it"):
            opened(place, write=write)


@pytest.mark.parametrize("found", ["2\n", "", "one", "\xff" * 90, "1" + " " * 70 + "2"])
def test_an_unknown_layout_is_a_sentence_and_not_a_guess(place, found):
    opened(place)
    (place.directory / "layout").write_text(found, encoding="latin-1")
    if found.startswith("1"):
        assert opened(place)  # only the beginning is read, and it is this layout's
        return
    with pytest.raises(StoreError, match="this release knows layout 1: use one version"):
        opened(place)


def test_a_place_without_a_layout_is_of_this_one(place):
    opened(place)
    (place.directory / "layout").unlink()
    assert opened(place)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "lustre", "fuse.sshfs"])
def test_a_network_file_system_is_a_sentence(place, kind):
    with pytest.raises(StoreError, match=rf"network file system \({kind}\).*name a local direc"):
        opened(place, filesystem=lambda _: kind)


@pytest.mark.parametrize("kind", ["tmpfs", "ext4", "overlay", None])
def test_a_local_or_unknown_file_system_is_used(place, kind):
    assert opened(place, filesystem=lambda _: kind)


def test_the_type_of_a_file_system_is_read_from_the_system():
    assert filesystem_type(Path("/proc")) == "proc"


def test_the_type_of_what_is_not_there_is_unknown():
    assert filesystem_type(Path("/nonexistent/leases")) is None


def test_a_sentence_leaves_no_descriptor_open(place):
    opened(place)
    (place.directory / "layout").write_text("9")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(StoreError):
            opened(place)
    assert len(os.listdir("/proc/self/fd")) == before


class TestSafety:
    """How far a place can be trusted; the directories above a test's are root's own."""

    @pytest.fixture(autouse=True)
    def _as_root(self, needs_root):
        """Only root can make a directory that is safe."""

    def test_what_root_owns_is_safe(self, place):
        opened(place)
        assert safety(place) is None

    def test_nothing_at_all_is_not_safe(self, place):
        assert "sudo" in safety(place)

    def test_a_simulated_machine_has_nothing_to_protect(self, place):
        assert safety(Place(place.directory, "simulated")) is None

    @pytest.mark.parametrize("name", [".", "lock", ".."])
    def test_what_another_user_owns_is_not_safe(self, place, name):
        opened(place)
        os.chown(place.directory / name, 65534, 65534)
        assert safety(place) is not None

    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
    def test_a_directory_that_others_may_write_is_not_safe(self, place, mode):
        opened(place)
        place.directory.chmod(mode)
        assert safety(place) is not None

    def test_a_directory_above_that_others_may_write_is_not_safe_unless_sticky(self, place):
        opened(place)
        place.directory.parent.chmod(0o777)
        assert safety(place) is not None
        place.directory.parent.chmod(0o1777)
        assert safety(place) is None
