from support_cli import gpu, gpu_json

import jupyter_gpu


def test_it_shows_every_gpu_with_its_holder(capsys, eight_gpus):
    with jupyter_gpu.acquire(2):
        code, out, err = gpu(capsys, "status")
    assert (code, err) == (0, "")
    assert out.startswith("8 GPUs, 6 free")
    assert "simulated machine" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_its_json_is_the_inventory_with_leases(capsys, eight_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with jupyter_gpu.acquire(1):
        answer = gpu_json(capsys, "status")
    assert answer["machine"]["source"] == "simulated"
    assert [row["uuid"] for row in answer["devices"]] == [d.uuid for d in eight_gpus.devices]
    assert [row["index"] for row in answer["visible"]["devices"]] == [3, 1]
    assert len(answer["devices"][1]["leases"]) == 1


def test_it_answers_whatever_cannot_be_read(capsys, lease_directory, monkeypatch):
    lease_directory.write_text("")
    monkeypatch.setenv("JUPYTER_GPU_SIMULATE", "1xNOTHING")
    answer = gpu_json(capsys, "status")
    assert answer["machine"]["source"] == "none"
    assert "NOTHING" in answer["machine"]["problem"]
    assert "not a directory" in answer["leasing"]["problem"]
    code, out, _ = gpu(capsys, "status")
    assert code == 0
    assert "NOTHING" in out


def test_without_a_driver_it_says_so(driver_double):
    driver_double.write(missing=[])
    answer = driver_double.python(
        "from jupyter_gpu.cli import main; main(['status'])",
    )
    assert answer.startswith("No GPU can be seen here")


def test_it_reads_the_driver_library(driver_double):
    from doubles import gpu as described

    driver_double.write(described(0, memory_used_bytes=13 * 2**30, utilization_percent=43))
    text = driver_double.python("from jupyter_gpu.cli import main; main(['status'])")
    assert "H200  13.0 of 140.4 GiB  43 %" in text
