import argparse

import pytest

from jupyter_gpu.core.errors import UsageError
from jupyter_gpu.core.request import OPTIONS, Request
from jupyter_gpu.faces.commands.command import Options
from jupyter_gpu.faces.commands.request_options import (
    add_request_arguments,
    add_slurm_arguments,
    given_options,
    refuse_slurm,
)


@pytest.fixture
def read():
    parser = argparse.ArgumentParser()
    add_request_arguments(parser)
    add_slurm_arguments(parser)
    return lambda *words: Options(**vars(parser.parse_args(words)))


def test_every_option_of_a_request_has_its_name_with_dashes(read):
    words = [f"--{name.replace('_', '-')}=x" for name in OPTIONS]
    assert given_options(read(*words)) == dict.fromkeys(OPTIONS, "x")


def test_what_is_not_given_is_left_out(read):
    assert given_options(read()) == {}
    assert given_options(read("--gpus", "2")) == {"gpus": "2"}


def test_lists_are_written_by_comma(read):
    given = given_options(read("--devices", "0,GPU-aaaa", "--min-free-memory", "20GiB"))
    request = Request.parse(given)
    assert request.devices == ("0", "GPU-aaaa")
    assert request.min_free_memory_bytes == 20 * 2**30


@pytest.mark.parametrize("words", [["--slurm"], ["--partition", "x"], ["--gpu-type=a"]])
def test_options_of_slurm_are_refused_by_name(read, words):
    options = read(*words)
    with pytest.raises(UsageError, match=words[0].partition("=")[0]):
        refuse_slurm(options)


def test_without_them_nothing_is_refused(read):
    refuse_slurm(read("--gpus", "1"))


def test_some_can_be_left_out():
    parser = argparse.ArgumentParser()
    add_request_arguments(parser, without=("on_unavailable",))
    assert not hasattr(parser.parse_args([]), "on_unavailable")


def test_every_option_has_a_help_that_names_its_values():
    parser = argparse.ArgumentParser()
    add_request_arguments(parser)
    text = " ".join(parser.format_help().split())
    for name in OPTIONS:
        assert f"--{name.replace('_', '-')}" in text
    for value in ("1/4", "mig:1g.18gb", "prefer", "require", "closest", "auto", "none"):
        assert value in text
