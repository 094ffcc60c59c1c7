import json
import os
from pathlib import Path

import pytest
from support_cli import gpu, gpu_json


def installed(name):
    path = Path(os.environ["JUPYTER_DATA_DIR"]) / "kernels" / name / "kernel.json"
    return json.loads(path.read_text())


def test_a_kernelspec_is_written_where_this_user_keeps_them(capsys, eight_gpus):
    code, out, _ = gpu(capsys, "install", "--gpus", "3")
    assert code == 0
    assert out.startswith('Installed "PyTorch (3 GPUs)" as pytorch-3gpus in')
    assert installed("pytorch-3gpus")["metadata"]["kernel_provisioner"]["config"] == {"gpus": 3}


@pytest.mark.parametrize("written", ["1/4", "¼", "2/8"])
def test_a_quarter_has_the_name_that_the_wheel_gives_it(capsys, eight_gpus, written):
    spec = gpu_json(capsys, "install", "--gpus", written)["kernelspec"]
    assert (spec["name"], spec["display_name"]) == ("pytorch-quarter-gpu", "PyTorch (¼ GPU)")
    assert spec["gpus"] == "1/4"
    found = installed("pytorch-quarter-gpu")
    assert found["metadata"]["kernel_provisioner"]["config"] == {"gpus": "1/4"}
    assert "--gpus=1/4" in found["argv"]


MIG_MACHINE = {
    "gpus": [
        {"name": "NVIDIA H200", "mig": [{"profile": "1g.18gb"}, {"profile": "3g.71gb"}]},
        {"name": "NVIDIA H200"},
    ]
}


def test_a_mig_profile_that_the_machine_has_is_installed(capsys, simulate):
    simulate(MIG_MACHINE)
    code, out, err = gpu(capsys, "install", "--gpus", "mig:1g.18gb")
    assert (code, err) == (0, "")
    assert out.startswith('Installed "PyTorch (MIG 1g.18gb)" as pytorch-mig-1g.18gb in')


def test_a_mig_profile_that_the_machine_lacks_is_refused_with_those_it_has(capsys, simulate):
    simulate(MIG_MACHINE)
    code, out, err = gpu(capsys, "install", "--gpus", "mig:7g.141gb")
    assert (code, out) == (2, "")
    assert "MIG profiles: 1g.18gb, 3g.71gb." in " ".join(err.split())


def test_neighbours_are_looked_for_before_they_are_promised(capsys, simulate):
    pair = {"name": "NVIDIA H200", "links": {"1": "nvlink"}}
    simulate({"gpus": [pair, {"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]})
    words = ("install", "--topology", "require", "--name", "near")
    code, out, _ = gpu(capsys, *words, "--gpus", "2")
    assert code == 0
    assert out.startswith('Installed "PyTorch (2 GPUs, NVLink)" as near in')
    code, out, err = gpu(capsys, *words, "--gpus", "3")
    assert (code, out) == (2, "")
    assert "cannot be met here" in " ".join(err.split())


def test_its_json_is_the_kernelspec(capsys, eight_gpus):
    spec = gpu_json(capsys, "install", "--gpus", "all")["kernelspec"]
    assert (spec["name"], spec["gpus"], spec["provisioner"]) == (
        "pytorch-all-gpus",
        "all",
        "gpu-provisioner",
    )


def test_every_option_of_the_request_stands_in_it_as_written(capsys, eight_gpus):
    words = (
        "--devices 4,5 --wait 10m --min-free-memory 20GiB --model H200 --identifiers uuid "
        "--topology prefer --cpu-affinity closest --memory-cap 10GiB"
    )
    assert gpu(capsys, "install", "--gpus", "2", "--name", "mine", *words.split())[0] == 0
    spec = installed("mine")
    assert spec["metadata"]["kernel_provisioner"]["config"] == {
        "gpus": 2,
        "devices": ["4", "5"],
        "wait": "10m",
        "min_free_memory": "20GiB",
        "model": "H200",
        "identifiers": "uuid",
        "topology": "prefer",
        "cpu_affinity": "closest",
        "memory_cap": "10GiB",
    }
    assert "--devices=4,5" in spec["argv"]
    assert {"--topology=prefer", "--cpu-affinity=closest", "--memory-cap=10GiB"} < {*spec["argv"]}
    assert spec["display_name"] == "PyTorch (2 GPUs, NVLink preferred, waits 10m)"


def test_names_environment_and_place_can_be_chosen(capsys, eight_gpus, tmp_path):
    words = ["--name", "mine", "--display-name", "Mine", "--env", "A=1", "--env", "B=2"]
    assert gpu(capsys, "install", *words, "--prefix", tmp_path, "--no-provisioner")[0] == 0
    spec = json.loads((tmp_path / "share/jupyter/kernels/mine/kernel.json").read_text())
    assert (spec["display_name"], spec["env"]) == ("Mine", {"A": "1", "B": "2"})
    assert "kernel_provisioner" not in spec["metadata"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "9"], "this machine has 8 GPUs"),
        (["--gpus", "two"], "gpus: 'two'"),
        (["--devices", "11"], "There is no device 11"),
        (["--model", "T4000"], "T4000"),
        (["--gpus", "5/4"], "gpus: '5/4' is not a share"),
        (["--gpus", "0/4"], "gpus: '0/4' is not a share"),
        (["--gpus", "mig:1g"], "is not a MIG profile"),
        (["--gpus", "mig:1g.18gb"], "1 MIG device 1g.18gb is asked for"),
        (["--gpus", "1/4", "--memory-cap", "100MB"], "memory_cap of 100 MB is less than"),
        (["--topology", "nvlink"], "topology: 'nvlink' is not one of any, prefer, require"),
        (["--slurm"], "--slurm is not built yet"),
        (["--user", "--sys-prefix"], "not allowed with"),
    ],
)
def test_what_cannot_be_is_wrong_usage_and_nothing_is_written(capsys, eight_gpus, words, said):
    code, out, err = gpu(capsys, "install", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert not os.path.exists(os.environ["JUPYTER_DATA_DIR"])


def test_one_that_jupyter_would_not_use_is_not_said_to_be_installed(
    capsys, eight_gpus, tmp_path, monkeypatch
):
    gpu(capsys, "install", "--gpus", "3", "--prefix", tmp_path)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share/jupyter"))
    other = str(tmp_path / "share/jupyter/kernels/pytorch-3gpus")
    code, out, _ = gpu(capsys, "install", "--gpus", "3")
    assert code == 0
    assert out.startswith('Not in use: Jupyter goes on using another "pytorch-3gpus"\n')
    assert "Installed" not in out
    assert other in out
    assert "--name pytorch-3gpus-mine" in out
    assert installed("pytorch-3gpus")
    assert gpu_json(capsys, "install", "--gpus", "3")["kernelspec"]["hidden_by"] == other
    alone = gpu_json(capsys, "install", "--gpus", "3", "--name", "alone")["kernelspec"]
    assert alone["hidden_by"] is None
    assert "exit status is 0" in " ".join(gpu(capsys, "install", "--help")[1].split())


def test_a_source_that_is_not_there_is_a_failure(capsys, eight_gpus):
    code, _, err = gpu(capsys, "install", "--from", "no-such-kernelspec")
    assert code == 1
    assert "no-such-kernelspec" in err


def test_where_no_machine_can_be_asked_it_says_so_and_installs(capsys, simulate):
    simulate({"gpus": []})
    code, out, err = gpu(capsys, "install", "--gpus", "9")
    assert code == 0
    assert "Not checked against this machine" in err
    assert out.startswith("Installed")
    code, out, err = gpu(capsys, "install", "--gpus", "mig:1g.18gb")
    assert code == 0
    assert "Not checked against this machine" in err
    assert gpu(capsys, "install", "--gpus", "0")[2] == ""


def test_a_kernelspec_that_only_servers_lease_for_says_so(capsys, eight_gpus, tmp_path):
    folder = Path(os.environ["JUPYTER_DATA_DIR"]) / "kernels" / "other"
    folder.mkdir(parents=True)
    spec = {"argv": ["other-kernel", "{connection_file}"], "display_name": "Other", "language": "x"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    code, _, err = gpu(capsys, "install", "--from", "other", "--gpus", "1")
    assert code == 0
    assert "Only a Jupyter server" in err
