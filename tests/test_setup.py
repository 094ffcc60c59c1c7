from support_cli import gpu, gpu_json


def test_it_says_what_it_did_and_then_that_nothing_was_left_to_do(capsys, tmp_path):
    code, out, err = gpu(capsys, "setup", "--root", tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith("The lease directory of this machine is ready\nMade")
    assert gpu(capsys, "setup", "--root", tmp_path)[1] == (
        "The lease directory of this machine is ready, as it was\n"
    )


def test_its_json_lists_what_was_done(capsys, tmp_path):
    assert len(gpu_json(capsys, "setup", "--root", tmp_path)["done"]) == 4
    assert gpu_json(capsys, "setup", "--root", tmp_path)["done"] == []


def test_what_stands_in_the_way_is_a_failure(capsys, tmp_path):
    (tmp_path / "run").write_text("")
    code, out, err = gpu(capsys, "setup", "--root", tmp_path)
    assert (code, out) == (1, "")
    assert err.startswith("jupyter gpu: ")
