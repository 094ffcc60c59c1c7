import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support_cli import inventory

from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.kernelspec import pytorch
from jupyter_gpu.faces.spec_checks import examine_kernelspecs


@pytest.fixture
def write():
    def put(name, **changes):
        spec = {**pytorch({"gpus": 1}, executable=sys.executable), **changes}
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


def not_about_torch(found):
    return [check for check in found if "PyTorch" not in check.found or check.status == "ok"]


def test_a_sound_kernelspec_is_in_order(write):
    argv = [sys.executable, "-m", "jupyter_gpu.kernel", "--gpus=1", "-f", "{connection_file}"]
    write("sound", argv=argv)
    (check,) = checks("sound")
    assert (check.status, check.fix) == ("ok", None)


def test_a_misspelt_option_is_named_with_the_file_it_stands_in(write):
    write("misspelt", metadata=stanza(gpuss=2))
    check = not_about_torch(checks("misspelt"))[0]
    assert check.status == "fail"
    assert "'gpuss'" in check.found
    assert check.fix.endswith("misspelt/kernel.json")


def test_a_value_that_cannot_be_is_named(write):
    write("wrong", metadata=stanza(gpus="two"))
    assert "gpus: 'two'" in not_about_torch(checks("wrong"))[0].found


def test_the_wrappers_own_options_are_read_too(write):
    argv = [sys.executable, "-m", "jupyter_gpu.kernel", "--wait=soon", "-f", "{connection_file}"]
    write("wrapped", argv=argv, metadata={})
    assert "wait: 'soon'" in checks("wrapped")[0].found


def test_what_this_machine_can_never_give_is_a_warning(write):
    write("many", metadata=stanza(gpus=9))
    check = not_about_torch(checks("many"))[0]
    assert check.status == "warn"
    assert "this machine has 4 GPUs" in check.found
    assert check.fix == "jupyter gpu remove many"
    assert "machine" not in not_about_torch(checks("many", Inventory("none")))[0].found


def test_slurms_options_are_not_ours_to_judge(write):
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    write("cluster", argv=argv, metadata=stanza("slurm-gpu-provisioner", partition="x"))
    assert [check.status for check in checks("cluster")] == ["ok"]


def test_a_python_that_lacks_the_package_is_named_with_what_mends_it(write, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    python = str(tmp_path / "v/bin/python")
    write("bare", argv=[python, "-m", "jupyter_gpu.kernel", "--framework=torch", "-f", "x"])
    package, torch = checks("bare")
    assert (package.status, torch.status) == ("fail", "warn")
    assert package.found == f"{python} lacks jupyter-gpu and ipykernel"
    assert package.fix == f"{python} -m pip install jupyter-gpu ipykernel"
    assert torch.fix == f"{python} -m pip install torch"


def test_a_python_that_is_gone_is_said(write):
    write("gone", argv=["/no/such/python", "-m", "jupyter_gpu.kernel", "-f", "x"])
    assert "is not there any more" in checks("gone")[0].found


def test_other_languages_have_no_python_to_ask(write):
    write("julia", argv=["julia", "-e", "x", "{connection_file}"])
    assert [check.status for check in checks("julia")] == ["ok"]


def test_a_command_that_is_missing_is_said(write):
    write("empty", argv=[])
    assert checks("empty")[0].status == "fail"


def test_without_any_it_says_how_to_make_one(monkeypatch):
    monkeypatch.setattr("jupyter_gpu.faces.spec_checks.installed", lambda: ())
    (check,) = examine_kernelspecs(inventory())
    assert (check.status, check.fix) == ("warn", "jupyter gpu install --gpus 1")
