"""The command that reports who has used the GPUs."""

import json
import os
from datetime import datetime, timedelta, timezone
from fractions import Fraction

import pytest
from support_cli import gpu, gpu_json

from jupyter_gpu.adapters.grant_log import GrantLog
from jupyter_gpu.adapters.place import Place, furnish
from jupyter_gpu.adapters.processes import user_name
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.core.grants import Ended, Granted, ended_line, granted_line

A, B, C = "a" * 15, "b" * 15, "c" * 15
ME = user_name(os.geteuid())


@pytest.fixture
def place(lease_directory):
    lease_directory.mkdir()
    furnish(lease_directory)
    return Place(lease_directory, "given")


def write(place, *lines, uid=None):
    """Lines of a user's log, by default this one's."""
    directory = GrantLog(place).directory
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"grants-{os.geteuid() if uid is None else uid}.jsonl"
    path.write_bytes(b"".join(lines))
    if uid is not None:
        os.chown(path, uid, uid)


def ago(**time):
    return datetime.now(timezone.utc) - timedelta(**time)


def granted(lease, share=1, **time):
    return granted_line(Granted(lease, ago(**time), ("GPU-0",), (0,), Fraction(share), "kernel"))


def ended(lease, exact=True, **time):
    return ended_line(Ended(lease, ago(**time), exact))


def test_it_adds_up_what_was_logged(capsys, place, eight_gpus):
    write(
        place, granted(A, days=3), ended(A, days=2), granted(B, "1/4", hours=9), ended(B, hours=1)
    )
    code, out, err = gpu(capsys, "report")
    assert (code, err) == (0, "")
    assert out.startswith(f"26.0 device-hours by {ME} since ")
    assert "The log is in" in out
    assert str(place.directory / "log") in out
    (row,) = gpu_json(capsys, "report")["users"]
    assert (row["user"], row["uid"], row["leases"]) == (ME, os.geteuid(), 2)
    assert row["device_hours"] == pytest.approx(26.0, abs=0.01)
    assert (row["open"], row["estimated"]) == (0, 0)


def test_a_period_cuts_off_what_was_before(capsys, place, eight_gpus):
    write(place, granted(A, days=3), ended(A, days=1))
    (row,) = gpu_json(capsys, "report", "--since", "2d")["users"]
    assert row["device_hours"] == pytest.approx(24.0, abs=0.01)
    assert gpu_json(capsys, "report", "--since", "6h")["users"] == []
    answer = gpu_json(capsys, "report", "--since", f"{ago(days=10):%Y-%m-%d}")
    assert answer["users"][0]["device_hours"] == pytest.approx(48.0, abs=0.01)
    begin = datetime.fromisoformat(answer["since"]).astimezone()
    assert (begin.hour, begin.minute) == (0, 0)
    assert answer["until"].endswith("+00:00")


def test_what_goes_on_and_what_was_lost_are_told_apart(capsys, place, eight_gpus):
    with LeaseStore(place, write=True) as store:
        live = store.new_claim()
        write(place, granted(live.id, hours=2), granted(C, hours=5))
        (row,) = gpu_json(capsys, "report")["users"]
        out = gpu(capsys, "report")[1]
        live.close()
    assert (row["leases"], row["open"], row["estimated"]) == (2, 1, 1)
    assert row["open_device_hours"] == pytest.approx(2.0, abs=0.01)
    assert "2.0 h, 1 lease" in out
    assert "≈: 1 lease was found ended" in out


def test_users_are_told_apart_by_who_owns_the_file(capsys, place, eight_gpus, needs_root):
    write(place, granted(A, hours=2), ended(A, hours=1))
    write(place, granted(B, hours=9), ended(B, hours=1), uid=65534)
    names = [row["user"] for row in gpu_json(capsys, "report")["users"]]
    assert names == ["nobody", ME]
    (row,) = gpu_json(capsys, "report", "--user", "nobody")["users"]
    assert row["uid"] == 65534
    assert gpu_json(capsys, "report", "--user", "65534")["users"] == [row]
    out = gpu(capsys, "report", "--user", "carol")[1]
    assert out.startswith("No lease of carol has been noted since ")


def test_a_file_that_is_not_believed_is_named(capsys, place, eight_gpus, needs_root):
    write(place, granted(A, hours=2), uid=65534)
    path = GrantLog(place).directory / "grants-65534.jsonl"
    os.chown(path, 0, 0)
    answer = gpu_json(capsys, "report")
    assert answer["users"] == []
    assert answer["notes"] == [f"{path} does not count: it belongs to root."]


def test_without_a_log_it_says_how_to_get_one(capsys, eight_gpus, lease_directory):
    code, out, err = gpu(capsys, "report")
    assert (code, err) == (0, "")
    said = " ".join(out.split())
    assert said.startswith("No lease has been noted since")
    assert f"There is no log yet: {lease_directory}/log does not exist." in said
    assert "It begins with the first lease here." in said


@pytest.mark.parametrize("kind", ["shared", "system"])
def test_the_machines_own_log_needs_setup(capsys, eight_gpus, monkeypatch, place, kind):
    from jupyter_gpu.faces.commands import report

    monkeypatch.setattr(report, "find_place", lambda *_, **__: Place(place.directory, kind))
    said = " ".join(gpu(capsys, "report")[1].split())
    assert "For a log of the whole machine in /var/log/jupyter-gpu, run sudo" in said
    assert ("ends with a restart" in said) is False
    if kind == "shared":
        write(place, granted(A, hours=2), ended(A, hours=1))
        assert "This log ends with a restart of the machine." in gpu(capsys, "report")[1]


@pytest.mark.parametrize("given", ["7", "soon", "2999-01-01", ""])
def test_a_period_that_cannot_be_is_wrong_usage(capsys, eight_gpus, given):
    code, out, err = gpu(capsys, "report", "--since", given)
    assert (code, out) == (2, "")
    assert err.startswith("jupyter gpu: since: ")


def test_a_lease_directory_that_cannot_be_read_is_a_note(capsys, eight_gpus, place):
    write(place, granted(A, hours=2), granted(B, hours=3), ended(B, hours=1))
    (place.directory / "layout").write_text("99\n")
    answer = gpu_json(capsys, "report")
    assert answer["users"][0]["device_hours"] == pytest.approx(2.0, abs=0.01)
    assert answer["notes"][0].startswith("Which leases go on is not known. GPUs cannot be leased:")


def test_what_is_torn_or_foreign_in_it_is_passed_over(capsys, place, eight_gpus):
    write(place, granted(A, hours=2)[:50], ended(A, hours=1), b"\xff\n", granted(B, hours=1), b"{")
    assert json.loads(gpu(capsys, "report", "--json")[1])["users"][0]["leases"] == 1
