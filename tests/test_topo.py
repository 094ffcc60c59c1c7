"""``%gpu topo`` in a real shell."""

import json

import pytest
from IPython.core.error import UsageError
from support_shell import make_shell


@pytest.fixture
def ask():
    """Run ``%gpu topo`` with these words in a shell, and return what it returns."""
    with make_shell() as shell:
        shell.run_line_magic("load_ext", "jupyter_gpu")
        yield lambda words="": shell.run_line_magic("gpu", f"topo {words}")


def test_it_shows_the_links_as_text_and_as_a_picture(simulate, ask, monkeypatch):
    simulate("8xH200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    shown = ask()._repr_mimebundle_()
    assert shown["text/plain"].startswith("This kernel's 2 GPUs: joined by NVLink")
    assert "3 = cuda:0" in shown["text/plain"]
    assert '<svg xmlns="http://www.w3.org/2000/svg" role="img"' in shown["text/html"]


def test_json_is_what_programs_read(simulate, ask):
    near = {"name": "NVIDIA X", "numa_node": 1}
    simulate({"gpus": [near | {"links": {"1": "NV4"}}, near]})
    answer = ask("--json")
    assert json.loads(json.dumps(answer))["schema"] == 1
    (link,) = answer["links"]
    assert (link["kind"], link["nvlinks"], link["indices"]) == ("nvlink", 4, [0, 1])
    assert [device["numa_node"] for device in answer["devices"]] == [1, 1]


def test_a_machine_that_changes_is_read_anew(simulate, ask):
    simulate({"gpus": [{"name": "NVIDIA X", "links": {"1": "PIX"}}, {"name": "NVIDIA X"}]})
    assert [link["short"] for link in ask("--json")["links"]] == ["PIX"]
    simulate({"gpus": [{"name": "NVIDIA X", "links": {"1": "PHB"}}, {"name": "NVIDIA X"}]})
    assert [link["short"] for link in ask("--json")["links"]] == ["PHB"]


def test_a_machine_that_cannot_be_read_is_a_sentence(monkeypatch, ask):
    monkeypatch.setenv("JUPYTER_GPU_SIMULATE", "3xNothing")
    assert "no model 'Nothing'" in repr(ask())
    answer = ask("--json")
    assert (answer["devices"], answer["links"]) == ([], [])
    assert "no model" in answer["problem"]


def test_without_a_gpu_it_answers_all_the_same(simulate, ask):
    simulate({"gpus": []})
    assert repr(ask()).startswith("No GPU can be seen here")


@pytest.mark.parametrize("words", ["0", "--jsn", "--json --all"])
def test_wrong_use_is_one_line(simulate, ask, words):
    simulate("2xL4")
    with pytest.raises(UsageError) as refused:
        ask(words)
    assert words.split()[-1] in str(refused.value)


def test_its_help_says_what_it_shows(simulate, ask, capsys):
    simulate("2xL4")
    assert ask("--help") is None
    assert "NVLink or PCIe" in capsys.readouterr().out
