"""The command that takes devices out of service."""

import json
import os

import pytest
from support_cli import gpu, gpu_json

from jupyter_gpu.adapters import locks
from jupyter_gpu.adapters.holds_file import read_holds
from jupyter_gpu.adapters.place import Place


@pytest.fixture
def held(lease_directory):
    """What is on hold now, as a function."""
    return lambda: read_holds(Place(lease_directory, "given")).entries


def test_a_device_is_out_of_service_with_the_reason(capsys, eight_gpus, held):
    code, out, err = gpu(capsys, "hold", "3", "--reason", "fan is\nloud")
    assert (code, out, err) == (0, "GPU 3 is out of service\n", "")
    (hold,) = held()
    assert (hold.uuid, hold.index, hold.reason) == (eight_gpus.gpus[3].uuid, 3, "fan is loud")
    assert hold.by


def test_its_json_is_the_holds(capsys, eight_gpus):
    uuids = [gpu.uuid for gpu in eight_gpus.gpus]
    answer = gpu_json(capsys, "hold", "1", uuids[1], uuids[5][:12], "--reason", "ECC")
    assert [row["uuid"] for row in answer["holds"]] == [uuids[1], uuids[5]]
    first = answer["holds"][0]
    assert first.keys() == {"uuid", "index", "reason", "by", "since", "already"}
    assert (first["index"], first["reason"], first["already"]) == (1, "ECC", False)
    assert first["since"].endswith("+00:00")


def test_what_is_leased_goes_on_and_that_is_said(capsys, eight_gpus):
    import jupyter_gpu

    with jupyter_gpu.acquire(2):
        out = gpu(capsys, "hold", "0", "1", "2", "--reason", "update")[1]
    lines = out.splitlines()
    assert lines[0] == "GPU 0, GPU 1, GPU 2 are out of service"
    assert len(lines) >= 3
    assert lines[1].startswith("GPU 0: ")
    assert "goes on until that lease ends." in " ".join(out.split())
    assert "GPU 2: " not in out


def test_on_hold_already_says_so_and_takes_the_new_reason(capsys, eight_gpus, held):
    gpu(capsys, "hold", "3", "--reason", "fan")
    since = held()[0].since
    out = gpu(capsys, "hold", "3", "--reason", "pump")[1]
    assert "GPU 3 was on hold since" in out
    assert "fan. It stays so, and the reason is new." in " ".join(out.split())
    assert [(hold.reason, hold.since) for hold in held()] == [("pump", since)]
    assert gpu_json(capsys, "hold", "3", "--reason", "fan")["holds"][0]["already"] is True


def test_a_mig_device_is_held_by_its_uuid_and_a_gpu_with_its_parts(capsys, simulate, held):
    description = {"name": "H200", "mig": [{"profile": "1g.18gb"}, {"profile": "1g.18gb"}]}
    machine = simulate({"gpus": [description]})
    part = machine.devices[1]
    out = gpu(capsys, "hold", part.uuid, "--reason", "ECC")[1]
    assert " ".join(out.split()) == f"MIG device {part.uuid} of GPU 0 is out of service"
    gpu(capsys, "hold", "0", "--reason", "fan")
    assert [hold.uuid for hold in held()] == [part.uuid, machine.devices[0].uuid]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["3"], "A hold needs a reason"),
        (["3", "--reason", " "], "A hold needs a reason"),
        (["--reason", "fan"], "the following arguments are required: DEVICE"),
        (["3", "8", "--reason", "fan"], "There is no device 8. There are:"),
        (["9"], "There is no device 9. There are:"),
        (["GPU-", "--reason", "fan"], "GPU- means several devices:"),
        (["3", "--reason"], "expected one argument"),
    ],
)
def test_every_mistake_is_wrong_usage_and_holds_nothing(capsys, eight_gpus, held, words, said):
    code, out, err = gpu(capsys, "hold", *words)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert held() == ()


def test_the_help_shows_that_a_reason_is_needed(capsys):
    code, out, _ = gpu(capsys, "hold", "--help")
    assert code == 0
    assert "[--json] --reason TEXT DEVICE" in " ".join(out.split())
    assert "[--reason" not in out


def test_a_machine_without_gpus_is_wrong_usage(capsys, simulate):
    simulate({"gpus": []})
    code, _, err = gpu(capsys, "hold", "0", "--reason", "fan")
    assert (code, "no GPU can be seen here" in " ".join(err.split())) == (2, True)


def test_a_file_that_is_not_believed_is_a_failure(capsys, eight_gpus, lease_directory):
    lease_directory.mkdir()
    (lease_directory / "holds.json").write_text("{")
    code, out, err = gpu(capsys, "hold", "0", "--reason", "fan")
    assert (code, out) == (1, "")
    assert "mend or remove it" in " ".join(err.split())


def test_who_may_not_is_told_who_may(capsys, eight_gpus, lease_directory, program, needs_root):
    lease_directory.mkdir()
    words = json.dumps(["hold", "0", "--reason", "fan"])
    other = program(MAIN, arguments=[words])
    assert other.read().startswith("1 jupyter gpu: Only root may take devices out of service")


# A first call imports what the second needs, which is made as another user.
MAIN = """
import contextlib, io, json, os, sys
from jupyter_gpu.cli import main
with contextlib.redirect_stderr(io.StringIO()):
    assert main(["hold", "99", "--reason", "fan"]) == 2
os.setresuid(65534, 65534, 65534)
with contextlib.redirect_stderr(io.StringIO()) as said:
    code = main(json.loads(sys.argv[1]))
print(code, " ".join(said.getvalue().split()))
"""


@pytest.mark.parametrize("command", ["hold", "unhold", "report"])
def test_where_nothing_is_leased_nothing_can_be_on_hold(capsys, monkeypatch, eight_gpus, command):
    monkeypatch.setattr(locks, "possible", lambda: False)
    words = {"hold": ["0", "--reason", "fan"], "unhold": ["0"], "report": []}[command]
    code, out, err = gpu(capsys, command, *words)
    assert (code, out) == (1, "")
    assert err.startswith("jupyter gpu: There are no leases on this system")


def test_in_the_place_all_users_share_a_hold_ends_with_a_restart(
    capsys, eight_gpus, monkeypatch, lease_directory
):
    from jupyter_gpu.faces.commands import hold

    monkeypatch.setattr(hold, "find_place", lambda *_, **__: Place(lease_directory, "shared"))
    out = gpu(capsys, "hold", "0", "--reason", "fan")[1]
    assert "ends with a restart of the machine. For holds that stay, first run sudo" in " ".join(
        out.split()
    )


def test_holds_of_a_simulated_machine_are_its_own(capsys, eight_gpus, monkeypatch, tmp_path):
    monkeypatch.delenv("JUPYTER_GPU_LEASE_DIR")
    monkeypatch.setattr("jupyter_gpu.adapters.place._shared_memory", lambda: tmp_path)
    gpu(capsys, "hold", "0", "--reason", "fan")
    place = Place(tmp_path / f"jupyter-gpu-simulated-{os.getuid()}", "simulated")
    assert [hold.index for hold in read_holds(place).entries] == [0]
