from support_cli import finish, gpu, gpu_json, start

import jupyter_gpu


def test_it_lists_leases_and_what_is_not_leased(capsys, eight_gpus):
    with jupyter_gpu.acquire(2) as held:
        code, out, err = gpu(capsys, "who")
        answer = gpu_json(capsys, "who")
    assert (code, err) == (0, "")
    assert out.startswith("1 lease on this machine")
    assert "Not leased: 2, 3, 4, 5, 6, 7 free" in out
    (row,) = answer["leases"]
    assert row["uuids"] == [device.uuid for device in held.devices]
    assert (row["kind"], row["state"], row["share"]) == ("api", "active", 1.0)
    assert gpu_json(capsys, "who")["leases"] == []


def test_it_lists_who_waits(capsys, eight_gpus, eventually):
    with jupyter_gpu.acquire("all"):
        with start("run", "--gpus", "2", "--wait", "1h", "--", "true") as waiting:
            (row,) = eventually(lambda: gpu_json(capsys, "who")["queue"])
            assert (row["position"], row["request"]["gpus"]) == (1, 2)
            assert (row["notebook"], row["command"]) == (None, "true")
            said = gpu(capsys, "who")[1]
            assert "2 GPUs" in said
            assert "  true  " in said
            waiting.terminate()
            waiting.communicate()


def test_a_lease_directory_that_cannot_be_used_is_a_sentence(eight_gpus, lease_directory):
    lease_directory.write_text("")
    code, out, err = finish("who")
    assert (code, err) == (0, "")
    assert "is not a directory" in " ".join(out.split())
