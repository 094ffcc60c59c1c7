from support_cli import gpu, gpu_json


def test_it_lists_what_was_installed(capsys, eight_gpus):
    gpu(capsys, "install", "--gpus", "3", "--name", "for-the-list")
    found = {spec["name"]: spec for spec in gpu_json(capsys, "list")["kernelspecs"]}
    spec = found["for-the-list"]
    assert spec["gpus"] == 3
    assert spec["display_name"] == "PyTorch (3 GPUs)"
    assert spec["provisioner"] == "gpu-provisioner"
    assert spec["path"].endswith("/kernels/for-the-list")
    code, out, err = gpu(capsys, "list")
    assert (code, err) == (0, "")
    assert "for-the-list" in out
    assert out.splitlines()[1].split() == ["Name", "Display", "name", "GPUs", "Provisioner"]
    assert out.splitlines()[2].split() == ["Folder"]


def test_it_takes_nothing_more(capsys):
    assert gpu(capsys, "list", "pytorch")[0] == 2


def test_a_part_of_a_gpu_stands_there_as_it_is_written(capsys, eight_gpus):
    gpu(capsys, "install", "--gpus", "2/8")
    found = {spec["name"]: spec for spec in gpu_json(capsys, "list")["kernelspecs"]}
    assert found["pytorch-quarter-gpu"]["gpus"] == "1/4"
    assert found["pytorch-quarter-gpu"]["display_name"] == "PyTorch (¼ GPU)"
    lines = gpu(capsys, "list")[1].splitlines()
    (line,) = [line for line in lines if line.split()[:1] == ["pytorch-quarter-gpu"]]
    assert "1/4" in line.split()
