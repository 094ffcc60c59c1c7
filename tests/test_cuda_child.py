import os
import sys
import time

import pytest
from doubles import gpu, mig
from doubles.fixtures import driver_double, driver_libraries

from jupyter_gpu.adapters.cuda_child import ask_in_child

__all__ = ["driver_double", "driver_libraries"]


def digits(described):
    return described["uuid"].partition("-")[2].replace("-", "")


def test_it_sees_what_a_program_with_these_variables_sees(driver_double):
    driver_double.write(gpu(0), gpu(1), gpu(2), cuda=12040)
    answer = ask_in_child(driver_double.environment(CUDA_VISIBLE_DEVICES="2,0"))
    assert (answer.cuinit, answer.cuda) == (0, "12.4")
    assert answer.uuids == (digits(gpu(2)), digits(gpu(0)))


def test_of_a_mig_device_it_gives_the_devices_own_uuid(driver_double):
    driver_double.write(gpu(0, mig_mode=True, mig=[mig(0), mig(1)]))
    answer = ask_in_child(driver_double.environment(CUDA_VISIBLE_DEVICES=mig(1)["uuid"]))
    assert answer.uuids == (digits(mig(1)),)


@pytest.mark.parametrize(("value", "code"), [("-1", 100), ("0,0", 101)])
def test_the_code_of_cuinit_is_told(driver_double, value, code):
    driver_double.write(gpu(0))
    assert ask_in_child(driver_double.environment(CUDA_VISIBLE_DEVICES=value)).cuinit == code


def test_where_there_is_no_library_it_says_so():
    answer = ask_in_child({**os.environ, "LD_LIBRARY_PATH": "/nowhere"})
    assert not answer.found
    assert answer.problem is None


@pytest.fixture
def script(tmp_path):
    def write(code):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{code}\n")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("kill -SEGV $$", "signal 11 (SIGSEGV)"),
        ("echo broken >&2; exit 3", "broken"),
        ("echo '{}'", "ended with 0"),
        ("echo '[1]'", "ended with 0"),
        ("exit 4", "ended with 4"),
    ],
)
def test_what_goes_wrong_there_is_a_sentence_here(script, code, words):
    answer = ask_in_child(os.environ, python=script(code))
    assert words in answer.problem
    assert answer.cuinit is None


def test_it_waits_no_longer_than_it_is_told(script):
    began = time.monotonic()
    answer = ask_in_child(os.environ, python=script("exec sleep 60"), seconds=0.2)
    assert "within 0.2 s" in answer.problem
    assert time.monotonic() - began < 10


def test_a_python_that_is_not_there_is_a_sentence():
    assert "cannot be run" in ask_in_child(os.environ, python="/nowhere/python").problem


def test_nothing_is_loaded_or_initialised_in_this_process(driver_double):
    driver_double.write(gpu(0))
    said = driver_double.python(
        "import os; from jupyter_gpu.adapters.cuda_child import ask_in_child\n"
        "print(ask_in_child(os.environ).cuinit, 'libcuda' in open('/proc/self/maps').read())"
    )
    assert said == "0 False\n"
    assert sys.executable
