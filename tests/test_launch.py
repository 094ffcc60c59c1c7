import os
import sys

from jupyter_gpu.adapters.launch import Launch, launched_with

CHANGE_AND_ASK = """
import os
from jupyter_gpu.adapters.launch import Launch
os.environ["CUDA_VISIBLE_DEVICES"] = "changed since"
print(Launch.of_this_process().visible, os.getpid() == Launch.of_this_process().pid)
"""


def test_a_later_change_does_not_hide_what_a_process_was_launched_with(program):
    child = program(CHANGE_AND_ASK, environ={"CUDA_VISIBLE_DEVICES": "3,5"})
    assert child.read() == "3,5 True"


def test_a_variable_that_was_not_set_is_none(program):
    assert program(CHANGE_AND_ASK).read() == "None True"


def test_under_the_wrapper_what_the_wrapper_has_set_counts(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-m", "jupyter_gpu.kernel", "-f", "x"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert launched_with("CUDA_VISIBLE_DEVICES") == "1"
    assert Launch.of_this_process() == Launch(os.getpid(), "1")
