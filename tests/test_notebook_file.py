"""The request in a notebook's metadata is read from plain notebooks, and from nothing else."""

import json
import os
import socket

import pytest

from jupyter_gpu.adapters.notebook_file import SIZE_LIMIT, read_notebook_options
from jupyter_gpu.core.errors import RequestError

OPTIONS = {"gpus": "1/4", "wait": "10m"}


def notebook(**metadata):
    return {"cells": [], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture
def write(tmp_path):
    def put(content, name="train.ipynb"):
        path = tmp_path / name
        if not isinstance(content, (str, bytes)):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return put


def test_the_options_are_returned_as_they_stand(write):
    assert read_notebook_options(write(notebook(jupyter_gpu=OPTIONS))) == OPTIONS
    assert read_notebook_options(write(notebook(jupyter_gpu={}))) == {}


def test_a_notebook_that_nbformat_writes_is_read(tmp_path):
    import nbformat.v4

    made = nbformat.v4.new_notebook(metadata={"jupyter_gpu": OPTIONS, "title": "Über ½"})
    made.cells.append(nbformat.v4.new_markdown_cell("½ \x1b[31m"))
    nbformat.write(made, tmp_path / "a.ipynb")
    assert read_notebook_options(str(tmp_path / "a.ipynb")) == OPTIONS


def test_a_link_to_a_notebook_is_the_notebook(write, tmp_path):
    (tmp_path / "link.ipynb").symlink_to(write(notebook(jupyter_gpu=OPTIONS)))
    assert read_notebook_options(str(tmp_path / "link.ipynb")) == OPTIONS


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "3",
        '"jupyter_gpu"',
        notebook(),
        notebook(other=OPTIONS),
        {"jupyter_gpu": OPTIONS, **notebook()},
        notebook(kernelspec={"jupyter_gpu": OPTIONS}),
        {"metadata": {"jupyter_gpu": OPTIONS}},
        {"metadata": {"jupyter_gpu": OPTIONS}, "nbformat": "4"},
        {"metadata": ["jupyter_gpu"], "nbformat": 4},
        {"metadata": None, "nbformat": 4, "cells": ["jupyter_gpu"]},
        [notebook(jupyter_gpu=OPTIONS)],
        b'{"nbformat": 4, "metadata": {"jupyter_gpu": {"gpus": "\xff"}}}',
        b'\xff\xfe{"jupyter_gpu": {}}',
        b"\x00" * 100 + b'"jupyter_gpu"',
        json.dumps(notebook(jupyter_gpu=OPTIONS)) + "\x00",
        json.dumps(notebook(jupyter_gpu=OPTIONS)).replace("4", "4\x00", 1),
        json.dumps(notebook(jupyter_gpu=OPTIONS))[:-1],
        '{"nbformat": 4, "metadata": {"jupyter_gpu": ' + "[" * 200_000,
        '{"a":' * 200_000 + '"jupyter_gpu"' + "}" * 200_000,
    ],
)
def test_what_is_no_notebook_or_has_no_such_key_has_no_request(write, content):
    assert read_notebook_options(write(content)) is None


def test_a_number_without_end_is_no_failure(write):
    text = json.dumps(notebook(jupyter_gpu={"gpus": 77})).replace("77", "7" * 100_000)
    found = read_notebook_options(write(text))
    # Pythons that read it hand it on; the request's reader refuses it.
    assert found is None or found["gpus"] > 10**100


@pytest.mark.parametrize("value", [None, 2, "1/4", True, [OPTIONS], "x" * 10**6])
def test_a_key_that_holds_no_object_is_refused_with_the_notebooks_name(write, value):
    with pytest.raises(RequestError, match=r"^jupyter_gpu: ") as caught:
        read_notebook_options(write(notebook(jupyter_gpu=value)))
    sentence = str(caught.value)
    assert 'is not an object with options, such as {"gpus": "1/4"}' in sentence
    assert sentence.endswith("\nIt stands in the metadata of train.ipynb.")
    assert len(sentence) < 1000


@pytest.mark.parametrize("path", ["", "no/such.ipynb", "console-1", "a\0b", "\udfff\ud800", "/"])
def test_a_path_that_leads_nowhere_has_no_request(path):
    assert read_notebook_options(path) is None


def test_pipes_devices_sockets_folders_and_links_in_a_circle_are_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link-to-pipe").symlink_to("pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "folder.ipynb").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for path in tmp_path.iterdir():
            assert read_notebook_options(str(path)) is None


def test_a_notebook_above_the_limit_is_not_read_and_one_at_it_is(write):
    text = json.dumps(notebook(jupyter_gpu=OPTIONS))
    path = write(text)
    os.truncate(path, SIZE_LIMIT + 1)
    assert read_notebook_options(path) is None
    assert read_notebook_options(write(text + " " * (SIZE_LIMIT - len(text)))) == OPTIONS
