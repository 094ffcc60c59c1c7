import os

from support_cli import gpu, gpu_json


def test_one_of_ours_is_removed(capsys, eight_gpus):
    gpu(capsys, "install", "--gpus", "3", "--name", "for-removal")
    code, out, err = gpu(capsys, "remove", "for-removal")
    assert (code, err) == (0, "")
    assert out.startswith("Removed ")
    assert not os.path.exists(out.removeprefix("Removed ").strip())
    assert "for-removal" not in {spec["name"] for spec in gpu_json(capsys, "list")["kernelspecs"]}


def test_another_of_that_name_is_used_then(capsys, eight_gpus, tmp_path, monkeypatch):
    folder = str(tmp_path / "share/jupyter/kernels/twice")
    gpu(capsys, "install", "--gpus", "3", "--name", "twice")
    gpu(capsys, "install", "--gpus", "3", "--name", "twice", "--prefix", tmp_path)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share/jupyter"))
    first = gpu_json(capsys, "remove", "twice")
    assert first["path"] == folder
    assert first["used_now"].endswith("/jupyter-data/kernels/twice")
    gpu(capsys, "install", "--gpus", "3", "--name", "twice", "--prefix", tmp_path)
    _, out, _ = gpu(capsys, "remove", "twice")
    assert " ".join(out.split()).startswith(f"Removed {folder} Another of that name is used now: /")
    _, out, _ = gpu(capsys, "remove", "twice")
    assert "Another" not in out


def test_json_says_what_is_gone(capsys, eight_gpus):
    gpu(capsys, "install", "--gpus", "3", "--name", "for-removal")
    assert gpu_json(capsys, "remove", "for-removal")["removed"] == "for-removal"


def test_what_is_not_there_or_not_ours_stays(capsys):
    code, out, err = gpu(capsys, "remove", "no-such-kernelspec")
    assert (code, out) == (1, "")
    assert "There is no kernelspec 'no-such-kernelspec'" in err
    code, _, err = gpu(capsys, "remove", "python3")
    assert code == 1
    assert "stays" in err


def test_a_name_is_needed(capsys):
    assert gpu(capsys, "remove")[0] == 2
