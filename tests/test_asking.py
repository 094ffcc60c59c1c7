"""What a kernel's start asks for: the kernelspec's options, the notebook's, the site's wait."""

import json
import os

import pytest

from jupyter_gpu.asking import asked_for
from jupyter_gpu.core.errors import GPUError, RequestError, UnknownOption
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.rules import RulesError

pytestmark = pytest.mark.usefixtures("eight_gpus")


@pytest.fixture(autouse=True)
def _no_rules_of_the_computers_own(monkeypatch, tmp_path):
    """Keep what ``/etc/jupyter-gpu.toml`` may say on this computer out of these tests."""
    path = tmp_path / "no-rules.toml"
    path.touch()
    monkeypatch.setenv("JUPYTER_GPU_CONFIG", str(path))


@pytest.fixture
def rules(tmp_path, monkeypatch):
    def write(text):
        path = tmp_path / "rules.toml"
        path.write_text(text)
        monkeypatch.setenv("JUPYTER_GPU_CONFIG", str(path))

    return write


@pytest.fixture
def notebook(tmp_path):
    """A function that writes a notebook with a request of its own; returns its path."""

    def write(options):
        path = tmp_path / "lesson.ipynb"
        metadata = {"jupyter_gpu": options}
        document = {"cells": [], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
        path.write_text(json.dumps(document))
        return str(path)

    return write


def asked(options=None, notebook=None, **more):
    return asked_for(options or {}, os.environ, notebook, **more)


def test_without_a_notebook_the_kernelspec_counts():
    found = asked({"gpus": 2, "wait": "1m"})
    assert found.request == Request.parse({"gpus": 2, "wait": 60})
    assert (found.origin, found.notices) == ("kernelspec", ())
    assert asked({"gpus": 2}, origin="server").origin == "server"


def test_a_notebook_narrows_what_its_kernelspec_allows(notebook):
    found = asked({"gpus": 1}, notebook({"gpus": "1/4", "memory_cap": "10GiB"}))
    assert (found.request.amount, found.request.memory_cap) == ("1/4", 10 * 2**30)
    assert (found.origin, found.notices) == ("notebook", ())


def test_a_notebook_that_asks_for_more_gets_what_the_kernelspec_gives_and_is_told(notebook):
    found = asked({"gpus": "1/4"}, notebook({"gpus": 2}))
    assert (found.request.amount, found.origin) == ("1/4", "kernelspec")
    (notice,) = found.notices
    assert notice.startswith("lesson.ipynb asks for 2 GPUs; this kernelspec allows")


def test_a_notebook_that_asks_for_no_gpu_is_named_as_the_reason(notebook):
    found = asked({"gpus": 1}, notebook({"gpus": 0}))
    assert (found.request.gpus, found.origin) == (0, "notebook")
    notice = "lesson.ipynb asks for no GPU itself (jupyter_gpu in its metadata)."
    assert found.notices == (notice,)


@pytest.mark.parametrize("path", ["/no/such.ipynb", "a console", "", "\0"])
def test_what_is_no_notebook_asks_for_nothing(path):
    assert asked({"gpus": 2}, path).request.gpus == 2


def test_an_error_in_the_notebook_is_told_with_its_name(notebook):
    with pytest.raises(UnknownOption, match=r"(?s)'gpuss'.*lesson\.ipynb"):
        asked({"gpus": 1}, notebook({"gpuss": 1}))
    with pytest.raises(RequestError, match=r"lesson\.ipynb"):
        asked({"gpus": 1}, notebook([1]))


@pytest.mark.parametrize(
    ("text", "options", "seconds"),
    [
        ("", {}, 8),
        ('default_wait = "2m"\n', {}, 120),
        ('default_wait = "2m"\n', {"wait": 3}, 3),
        ("default_wait = 0\n", {}, 0),
        ('default_wait = "2m"\n', {"wait": None}, 120),
    ],
)
def test_the_sites_wait_counts_where_the_kernelspec_says_none(rules, text, options, seconds):
    rules(text)
    assert asked(options).request.wait_seconds == seconds


def test_a_broken_file_of_rules_stands_against_every_gpu(rules, notebook):
    rules("nonsense = 1\n")
    for options in ({"gpus": 1}, {"gpus": "1/4"}, {"gpus": "all"}):
        with pytest.raises(RulesError):
            asked(options, notebook({"gpus": 0}))


def test_a_kernel_without_gpu_needs_no_rules(rules, monkeypatch, notebook):
    rules("nonsense = 1\n")
    monkeypatch.setenv("JUPYTER_GPU_LEASE_DIR", "/dev/null")
    assert asked({"gpus": 0}).request.gpus == 0
    assert asked({"gpus": 0}, notebook({"gpus": 0})).request.gpus == 0


def test_unknown_options_are_refused_by_name_for_no_gpu_too():
    with pytest.raises(UnknownOption, match="gpuss"):
        asked({"gpus": 0, "gpuss": 1})


def test_a_refusal_of_what_the_notebook_asks_for_says_so(notebook):
    path = notebook({"gpus": 1, "model": "B200"})
    asked = asked_for({"gpus": 1}, os.environ, path)
    told = str(asked.explained(GPUError("There is none.")))
    assert told.startswith("There is none.\nThe notebook asks for it itself")
    assert os.path.basename(path) in told
    kernelspecs = asked_for({"gpus": 1}, os.environ, None)
    error = GPUError("There is none.")
    assert kernelspecs.explained(error) is error
