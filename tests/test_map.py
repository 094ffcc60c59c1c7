import json
from pathlib import Path

import pytest
from support_cli import gpu, gpu_json

TABLE = json.loads((Path(__file__).parent / "data" / "driver_visibility.json").read_text())


@pytest.fixture
def measured_machine(simulate):
    return simulate({"gpus": [{"name": "NVIDIA H200", "uuid": uuid} for uuid in TABLE["uuids"]]})


def test_every_measured_value_is_read_as_the_driver_read_it(capsys, measured_machine):
    wrong = []
    for row in TABLE["rows"]:
        answer = gpu_json(capsys, "map", "--", row["value"])
        found = (answer["cuinit"], [device["index"] for device in answer["devices"]])
        if found != (row["cuInit"], row["devices"]) or answer["value"] != row["value"]:
            wrong.append((row, found))
    assert wrong == []


@pytest.mark.parametrize(
    ("words", "value"),
    [(("1,0",), "1,0"), (("",), ""), (("--", "-1"), "-1"), (("--", ""), ""), (("-1",), "-1")],
)
def test_a_value_can_be_given_in_every_way(capsys, eight_gpus, words, value):
    assert gpu_json(capsys, "map", *words)["value"] == value


def test_without_a_value_it_is_the_environments(capsys, eight_gpus, monkeypatch):
    answer = gpu_json(capsys, "map")
    assert answer["value"] is None
    assert len(answer["devices"]) == 8
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert [device["index"] for device in gpu_json(capsys, "map")["devices"]] == [7]


def test_the_text_shows_the_map_and_notes(capsys, eight_gpus):
    code, out, err = gpu(capsys, "map", "2,0")
    assert (code, err) == (0, "")
    assert "cuda:0 = physical 2" in out
    assert "Ranges are not read by CUDA" in gpu(capsys, "map", "0-2")[1]


def test_two_values_are_wrong_usage(capsys, eight_gpus):
    for words in (("1", "2"), ("--", "1", "2"), ("1", "--", "2")):
        code, out, err = gpu(capsys, "map", *words)
        assert (code, out) == (2, ""), err


def test_where_there_is_no_machine_cuinit_is_null(capsys, monkeypatch):
    monkeypatch.setenv("JUPYTER_GPU_SIMULATE", "")
    import jupyter_gpu

    if jupyter_gpu.inventory().source != "none":
        pytest.skip("this machine has a driver")
    assert gpu_json(capsys, "map", "0")["cuinit"] is None
