import os
import stat
import sys

import pytest

from jupyter_gpu.adapters.grant_log import GrantLog
from jupyter_gpu.adapters.holds_file import holds_path
from jupyter_gpu.adapters.place import Place, open_directory, open_lock, safety
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.machine_setup import set_up


@pytest.fixture
def root(lease_directory):
    folder = lease_directory.parent / "root"
    folder.mkdir()
    return folder


def modes(directory):
    names = (".", "lock", "records", "layout")
    return {name: oct(stat.S_IMODE((directory / name).stat().st_mode)) for name in names}


RIGHT = {".": "0o755", "lock": "0o666", "records": "0o1777", "layout": "0o644"}


def test_it_makes_a_directory_that_every_program_can_use(root):
    done = set_up(root)
    directory = root / "run/jupyter-gpu"
    assert modes(directory) == RIGHT
    assert (directory / "lock").read_bytes() == b""
    assert any("Made" in line for line in done)
    with LeaseStore(Place(directory, "system"), write=True) as store:
        claim = store.new_claim()
        assert claim.take(("GPU-x",))
        claim.close()


def test_it_survives_a_start_of_the_machine_through_tmpfiles(root):
    set_up(root)
    lines = (root / "etc/tmpfiles.d/jupyter-gpu.conf").read_text().splitlines()
    assert [line.split()[:3] for line in lines if not line.startswith("#")] == [
        ["d", "/run/jupyter-gpu", "0755"],
        ["f", "/run/jupyter-gpu/layout", "0644"],
        ["d", "/run/jupyter-gpu/records", "1777"],
        ["f", "/run/jupyter-gpu/lock", "0666"],
        ["d", "/var/lib/jupyter-gpu", "0755"],
        ["d", "/var/log/jupyter-gpu", "1777"],
    ]


def mode(path):
    return oct(stat.S_IMODE(path.stat().st_mode))


def test_it_makes_what_outlives_a_start_for_holds_and_for_the_log(root):
    done = set_up(root)
    holds, log = root / "var/lib/jupyter-gpu", root / "var/log/jupyter-gpu"
    assert (mode(holds), mode(log)) == ("0o755", "0o1777")
    assert {f"Made {holds}.", f"Made {log}."} <= set(done)
    place = Place(root / "run/jupyter-gpu", "system")
    assert holds_path(place).parent == holds
    assert GrantLog(place).directory == log


def test_holds_and_the_log_stay_and_their_directories_are_mended(root):
    set_up(root)
    holds, log = root / "var/lib/jupyter-gpu", root / "var/log/jupyter-gpu"
    for directory in (holds, log):
        (directory / "kept").write_text("kept")
        directory.chmod(0o777)
    assert len(set_up(root)) == 2
    assert (mode(holds), mode(log)) == ("0o755", "0o1777")
    assert {(directory / "kept").read_text() for directory in (holds, log)} == {"kept"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_directories_of_somebody_else_become_roots(root):
    set_up(root)
    both = [root / "var/lib/jupyter-gpu", root / "var/log/jupyter-gpu"]
    for directory in both:
        os.chown(directory, 65534, 65534)
    set_up(root)
    assert {directory.stat().st_uid for directory in both} == {0}


def test_again_it_has_nothing_to_do(root):
    set_up(root)
    assert set_up(root) == ()


def test_the_umask_of_who_runs_it_does_not_matter(root):
    before = os.umask(0o077)
    try:
        set_up(root)
    finally:
        os.umask(before)
    assert modes(root / "run/jupyter-gpu") == RIGHT
    assert mode(root / "var/log/jupyter-gpu") == "0o1777"


def test_it_mends_modes_and_empties_the_lock_file(root):
    set_up(root)
    directory = root / "run/jupyter-gpu"
    directory.chmod(0o777)
    (directory / "records").chmod(0o755)
    (directory / "lock").write_text("something")
    done = set_up(root)
    assert modes(directory) == RIGHT
    assert (directory / "lock").read_bytes() == b""
    assert len(done) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_as_root_it_makes_everything_roots_and_safe(root):
    set_up(root)
    directory = root / "run/jupyter-gpu"
    for path in (directory, directory / "lock", directory / "records"):
        os.chown(path, 65534, 65534)
    set_up(root)
    assert {path.stat().st_uid for path in (directory, *directory.iterdir())} == {0}
    assert {path.stat().st_gid for path in (directory, *directory.iterdir())} == {0}
    # As safe as the folders above it are: the tests' own are root's, or in a sticky one.
    assert safety(Place(directory, "system")) is None


@pytest.mark.parametrize(
    "name",
    ["run/jupyter-gpu", "run/jupyter-gpu/lock", "var/lib/jupyter-gpu", "var/log/jupyter-gpu"],
)
def test_what_stands_in_the_way_is_a_sentence(root, name):
    if name.endswith("lock"):
        set_up(root)
        (root / name).unlink()
    else:
        (root / name).parent.mkdir(parents=True)
    (root / name).symlink_to("/etc/passwd")
    before = (root / name).readlink()
    with pytest.raises(StoreError, match="remove it"):
        set_up(root)
    assert (root / name).readlink() == before


def test_it_refuses_while_leases_live_in_the_place_used_before(root):
    directory = root / "dev/shm/jupyter-gpu"
    (root / "dev/shm").mkdir(parents=True)
    place = Place(directory, "shared")
    with LeaseStore(place, write=True) as store:
        claim = store.new_claim()
        with pytest.raises(StoreError, match="Leases still live in") as refused:
            set_up(root)
        claim.close()
    assert "left no record" in str(refused.value)
    assert not (root / "run/jupyter-gpu").exists()
    assert set_up(root)


def test_a_lease_that_began_meanwhile_undoes_it(root, monkeypatch):
    from jupyter_gpu import machine_setup

    (root / "dev/shm").mkdir(parents=True)
    place = Place(root / "dev/shm/jupyter-gpu", "shared")
    kept = []

    def write_and_be_overtaken(path):
        directory_fd = open_directory(place, create=True)
        kept.append(open_lock(place, directory_fd, write=True))
        os.close(directory_fd)
        from jupyter_gpu.adapters import locks
        from jupyter_gpu.core.layout import Range

        assert locks.try_lock(kept[0], Range(5, 1))
        return []

    monkeypatch.setattr(machine_setup, "_write_tmpfiles", write_and_be_overtaken)
    with pytest.raises(StoreError, match="Leases still live in"):
        set_up(root)
    os.close(kept[0])
    assert not (root / "run/jupyter-gpu").exists()
    assert not (root / "var").exists()


def test_without_root_it_says_how(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(StoreError, match=r"sudo .* setup"):
        set_up()


def test_on_other_systems_there_is_nothing_to_set_up(monkeypatch, root):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(StoreError, match="nothing to set up"):
        set_up(root)
