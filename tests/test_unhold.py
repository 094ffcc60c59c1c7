"""The command that puts devices back into service."""

import pytest
from support_cli import gpu, gpu_json

from jupyter_gpu.adapters.holds_file import read_holds
from jupyter_gpu.adapters.place import Place


@pytest.fixture
def held(lease_directory):
    """The indices of what is on hold now, as a function."""
    place = Place(lease_directory, "given")
    return lambda: [hold.index for hold in read_holds(place).entries]


@pytest.fixture
def three(capsys, eight_gpus, held):
    """Three of eight GPUs on hold."""
    assert gpu(capsys, "hold", "1", "3", "5", "--reason", "fan")[0] == 0
    return eight_gpus


def test_it_is_in_service_again(capsys, three, held):
    code, out, err = gpu(capsys, "unhold", "3")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "GPU 3 is no longer on hold"
    assert lines[1].startswith("GPU 3 was on hold since ")
    assert lines[1].endswith(": fan")
    assert held() == [1, 5]


def test_several_by_any_name(capsys, three, held):
    answer = gpu_json(capsys, "unhold", "1", three.gpus[5].uuid, "01")
    assert [row["index"] for row in answer["ended"]] == [1, 5]
    assert [row["index"] for row in answer["holds"]] == [3]
    assert held() == [3]


def test_what_is_not_on_hold_is_refused_and_nothing_changes(capsys, three, held):
    code, out, err = gpu(capsys, "unhold", "1", "2")
    assert (code, out) == (2, "")
    assert "2 is not on hold. These are:" in err
    assert "GPU 5 on hold since" in " ".join(err.split())
    assert held() == [1, 3, 5]


def test_without_any_hold_that_is_said(capsys, eight_gpus):
    code, _, err = gpu(capsys, "unhold", "1")
    assert (code, "1 is not on hold, nor is any other device." in err) == (2, True)


def test_no_device_is_wrong_usage(capsys, eight_gpus):
    code, _, err = gpu(capsys, "unhold")
    assert (code, "required: DEVICE" in err) == (2, True)


def test_a_device_that_is_gone_can_be_put_back_all_the_same(capsys, three, held, simulate):
    uuid = three.gpus[5].uuid
    simulate("2xL4")
    out = gpu(capsys, "unhold", uuid)[1]
    assert " ".join(out.split()).startswith(f"device {uuid} is no longer on hold")
    assert held() == [1, 3]


def test_a_part_stays_out_of_service_with_its_gpu(capsys, simulate, held):
    machine = simulate({"gpus": [{"name": "H200", "mig": [{"profile": "1g.18gb"}]}]})
    part = machine.devices[1].uuid
    gpu(capsys, "hold", "0", part, "--reason", "fan")
    said = " ".join(gpu(capsys, "unhold", part)[1].split())
    assert "stays out of service with its GPU, which is on hold since" in said
    assert held() == [0]
    assert "stays" not in gpu(capsys, "unhold", "0")[1]
    assert held() == []
