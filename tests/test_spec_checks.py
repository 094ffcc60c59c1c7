import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support_cli import gpu, inventory

from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.kernelspec import pytorch
from jupyter_gpu.faces.spec_checks import examine_kernelspecs


@pytest.fixture
def write():
    def put(name, **changes):
        spec = {**pytorch({"gpus": 1}, executable=sys.executable), **changes}
        spec = {key: value for key, value in spec.items() if value is not None}
        folder = Path(os.environ["JUPYTER_DATA_DIR"]) / "kernels" / name
        folder.mkdir(parents=True)
        (folder / "kernel.json").write_text(json.dumps(spec))
        return spec

    return put


def checks(name, machine=None):
    found = examine_kernelspecs(machine or inventory())
    return [check for check in found if check.name == f"kernelspec {name}"]


def stanza(name="gpu-provisioner", **config):
    return {"kernel_provisioner": {"provisioner_name": name, "config": config}}


def wrapped(*arguments, python=sys.executable):
    return [python, "-m", "jupyter_gpu.kernel", *arguments, "-f", "{connection_file}"]


@pytest.fixture
def bare_python(tmp_path):
    """A Python that has nothing, torch included."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    return str(tmp_path / "v/bin/python")


def torch_checks(machine=None):
    return [check for check in examine_kernelspecs(machine or inventory()) if check.name == "PyTorch"]


def test_a_sound_kernelspec_is_in_order(write):
    argv = [sys.executable, "-m", "jupyter_gpu.kernel", "--gpus=1", "-f", "{connection_file}"]
    write("sound", argv=argv)
    (check,) = checks("sound")
    assert (check.status, check.fix) == ("ok", None)


def test_a_misspelt_option_is_named_with_the_file_it_stands_in(write):
    write("misspelt", metadata=stanza(gpuss=2))
    check = checks("misspelt")[0]
    assert check.status == "fail"
    assert "'gpuss'" in check.found
    assert check.fix.endswith("misspelt/kernel.json")


def test_a_value_that_cannot_be_is_named(write):
    write("wrong", metadata=stanza(gpus="two"))
    assert "gpus: 'two'" in checks("wrong")[0].found


def test_the_wrappers_own_options_are_read_too(write):
    argv = [sys.executable, "-m", "jupyter_gpu.kernel", "--wait=soon", "-f", "{connection_file}"]
    write("wrapped", argv=argv, metadata={})
    assert "wait: 'soon'" in checks("wrapped")[0].found


def test_what_this_machine_can_never_give_is_a_warning(write):
    write("many", argv=wrapped("--gpus=9"), metadata=stanza(gpus=9))
    (check,) = checks("many")
    assert check.status == "warn"
    assert "this machine has 4 GPUs" in check.found
    assert "Some may just be out of sight here" in check.found
    assert check.fix == "jupyter gpu install --gpus=4 --from many --name many"
    assert [check.status for check in checks("many", Inventory("none"))] == ["ok"]
    write("other", argv=wrapped("--gpus=2", "--model=L4"), metadata=stanza(gpus=2, model="L4"))
    assert checks("other")[0].fix == "jupyter gpu install --gpus=2 --from other --name other"


def mended(capsys, name, machine):
    """Run the command that a finding names; returns the kernelspec's options after it."""
    (check,) = checks(name, machine)
    assert check.status == "warn"
    code, _, err = gpu(capsys, *shlex.split(check.fix)[2:])
    assert code == 0, err
    assert [after.status for after in checks(name, machine)] == ["ok"]
    path = Path(os.environ["JUPYTER_DATA_DIR"]) / "kernels" / name / "kernel.json"
    return json.loads(path.read_text())["metadata"]["kernel_provisioner"]["config"]


def test_a_share_is_in_order(write):
    write("quarter", argv=wrapped("--gpus=1/4"), metadata=stanza(gpus="1/4"))
    assert [check.status for check in checks("quarter")] == ["ok"]


def test_a_mig_profile_that_the_machine_lacks_is_mended_by_one_that_it_has(
    capsys, write, simulate
):
    machine = simulate({"gpus": [{"name": "NVIDIA H200", "mig": [{"profile": "3g.71gb"}]}]})
    write("mig", argv=wrapped("--gpus=mig:1g.18gb"), metadata=stanza(gpus="mig:1g.18gb"))
    assert "MIG profiles: 3g.71gb." in checks("mig", machine)[0].found
    assert mended(capsys, "mig", machine) == {"gpus": "mig:3g.71gb"}


def test_neighbours_that_are_not_there_are_mended_by_preferring_them(capsys, write, simulate):
    pair = {"name": "NVIDIA H200", "links": {"1": "nvlink"}}
    machine = simulate({"gpus": [pair, {"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]})
    for gpus in (2, 3):
        argv = wrapped(f"--gpus={gpus}", "--topology=require")
        write(f"near-{gpus}", argv=argv, metadata=stanza(gpus=gpus, topology="require"))
    assert [check.status for check in checks("near-2", machine)] == ["ok"]
    assert "cannot be met here" in checks("near-3", machine)[0].found
    assert mended(capsys, "near-3", machine) == {"gpus": 3, "topology": "prefer"}


def test_the_command_that_changes_a_kernelspec_changes_it_where_it_is(
    capsys, write, eight_gpus, monkeypatch, tmp_path
):
    write("many", argv=wrapped("--gpus=9"), metadata=stanza(gpus=9))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    gpu(capsys, "install", "--sys-prefix", "--gpus", "8", "--name", "mine")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share/jupyter"))
    for name, place in (("many", ()), ("mine", ("--sys-prefix",))):
        (check,) = checks(name)
        words = check.fix.split()
        assert words[-len(place) or len(words) :] == list(place)
        assert gpu(capsys, *words[2:])[0] == 0
        (check,) = checks(name)
        assert check.status == "ok"
        assert "(4 GPUs)" in check.found
    monkeypatch.setattr(sys, "prefix", "/elsewhere")
    gpu(capsys, "install", "--prefix", tmp_path, "--gpus", "8", "--name", "mine")
    assert checks("mine")[0].fix.endswith(f"--name mine --prefix {tmp_path}")
    (tmp_path / "kernels").symlink_to(tmp_path / "share/jupyter/kernels")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    assert checks("mine")[0].fix == f"edit {tmp_path}/kernels/mine/kernel.json"


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"gpus": 2}, "the top level"),
        ({"metadata": {**stanza(), "gpus": 2}}, "metadata"),
        ({"metadata": {"kernel_provisioner": {"provisioner_name": "gpu-provisioner", "gpus": 2}}},
         "metadata.kernel_provisioner"),
        ({"kernel_provisioner": {"config": {"gpus": 2}}}, "kernel_provisioner.config"),
    ],
)  # fmt: skip
def test_an_option_where_nothing_reads_it_is_named_with_where_it_belongs(write, changes, place):
    write("astray", **{"argv": wrapped("--gpus=1"), **changes})
    (check,) = checks("astray")
    assert check.status == "warn"
    assert f"'gpus' stands in {place} of its kernel.json, where nothing reads it" in check.found
    assert "metadata.kernel_provisioner.config and in argv, as --gpus=…" in check.found
    assert check.fix.endswith("astray/kernel.json")


def test_where_only_the_wrapper_leases_an_option_belongs_to_argv(write):
    write("astray", argv=wrapped(), metadata={"gpus": 2})
    assert checks("astray")[0].found.endswith("it belongs in argv, as --gpus=…")


def test_what_the_two_ways_of_starting_ask_for_has_to_be_the_same(capsys, write, eight_gpus):
    write("two", argv=wrapped("--gpus=1", "--wait=10m"), metadata=stanza(gpus=2, wait="600s"))
    (check,) = checks("two")
    assert check.status == "warn"
    assert check.found.startswith("gpus: 1 in argv, 2 in config. Front ends that start argv")
    assert "VS Code" in check.found
    assert check.fix == "jupyter gpu install --gpus=2 --wait=600s --from two --name two"
    assert gpu(capsys, *check.fix.split()[2:])[0] == 0
    assert [check.status for check in checks("two")] == ["ok"]


def test_an_option_that_one_way_lacks_is_a_difference_and_the_wrappers_own_is_none(write):
    write("model", argv=wrapped("--gpus=1"), metadata=stanza(gpus=1, model="H200"))
    assert checks("model")[0].found.startswith("model: not given in argv, H200 in config.")
    write("own", argv=wrapped("--gpus=1", "--on-unavailable=wait"), metadata=stanza())
    assert [check.status for check in checks("own")] == ["ok"]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--gpuz=2", "There is no option 'gpuz'."),
        ("--gpu=2", "There is no option 'gpu'."),
        ("--memory-cap=much", "memory_cap: 'much' is not"),
    ],
)
def test_an_argument_that_looks_like_an_option_is_named(write, argument, words):
    write("slip", argv=wrapped("--gpus=1", argument))
    (check,) = checks("slip")
    assert check.status == "fail"
    assert check.found.startswith(words)
    assert check.fix.endswith("slip/kernel.json")


def test_ipykernels_own_arguments_are_left_alone(write):
    own = ("--debug", "--profile=x", "--matplotlib=inline", "--Session.key=x", "--log-level=10")
    write("own", argv=wrapped("--gpus=1", *own))
    assert [check.status for check in checks("own")] == ["ok"]


def test_slurms_options_are_not_ours_to_judge(write):
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    write("cluster", argv=argv, metadata=stanza("slurm-gpu-provisioner", partition="x"))
    assert [check.status for check in checks("cluster")] == ["ok"]


def test_a_python_that_lacks_the_package_is_named_with_what_mends_it(write, bare_python):
    write("bare", argv=wrapped("--framework=torch", python=bare_python))
    (package,) = checks("bare")
    (torch,) = torch_checks()
    assert (package.status, torch.status) == ("fail", "warn")
    assert package.found == f"{bare_python} lacks jupyter-gpu and ipykernel"
    assert package.fix == f"{bare_python} -m pip install jupyter-gpu ipykernel"
    assert torch.fix == f"{bare_python} -m pip install torch"


def test_a_missing_pytorch_is_said_once_for_all_kernelspecs_of_a_python(write, bare_python):
    for number in (0, 1, 2):
        argv = wrapped(f"--gpus={number}", "--framework=torch", python=bare_python)
        write(f"torch-{number}", argv=argv, metadata=stanza(gpus=number))
    (torch,) = torch_checks()
    assert torch.found == f"{bare_python} lacks it, and runs torch-0, torch-1, torch-2"
    assert not any("PyTorch" in check.found for n in (0, 1, 2) for check in checks(f"torch-{n}"))


def test_a_missing_pytorch_is_not_said_of_a_kernelspec_without_a_gpu_alone(write, bare_python):
    argv = wrapped("--gpus=0", "--framework=torch", python=bare_python)
    write("torch-0", argv=argv, metadata=stanza(gpus=0))
    assert not any(bare_python in check.found for check in torch_checks())


def test_a_python_that_is_gone_is_said_with_what_mends_it(capsys, write, eight_gpus):
    argv = wrapped("--gpus=2", python="/no/such/python")
    write("gone", argv=argv, metadata=stanza(gpus=2))
    (check,) = checks("gone")
    assert (check.status, check.found) == ("fail", "/no/such/python is not there")
    assert gpu(capsys, *check.fix.split()[2:])[0] == 0
    assert [check.status for check in checks("gone")] == ["ok"]


def test_a_program_that_cannot_be_run_or_found_is_said(write, tmp_path):
    (tmp_path / "R").write_text("")
    write("file", argv=[str(tmp_path / "R"), "{connection_file}"])
    (check,) = checks("file")
    assert (check.status, check.found) == ("fail", f"{tmp_path}/R cannot be run")
    assert check.fix.startswith("edit /")
    write("bare", argv=["no-such-program", "{connection_file}"])
    (check,) = checks("bare")
    assert (check.status, check.found) == ("warn", "no-such-program is not on the PATH here")
    cluster = [*wrapped(python="/no/such/python")]
    write("cluster", argv=cluster, metadata=stanza("slurm-gpu-provisioner"))
    assert checks("cluster")[0].fix.startswith("edit /")


def test_the_python_of_the_server_is_there_by_its_short_names(write):
    for number, python in enumerate(("python", "python3")):
        write(f"own-{number}", argv=wrapped(python=python))
        assert [check.status for check in checks(f"own-{number}")] == ["ok"]


def test_other_languages_have_no_python_to_ask(write):
    write("shell", argv=["sh", "-c", "x", "{connection_file}"])
    assert [check.status for check in checks("shell")] == ["ok"]


def test_a_command_that_is_missing_is_said(write):
    write("empty", argv=[])
    assert checks("empty")[0].status == "fail"


def test_without_any_it_says_how_to_make_one(monkeypatch):
    monkeypatch.setattr("jupyter_gpu.faces.spec_checks.installed", lambda: ())
    (check,) = examine_kernelspecs(inventory())
    assert (check.status, check.fix) == ("warn", "jupyter gpu install --gpus 1")
