"""The end of a process is noticed at once."""

import os
import threading

from jupyter_gpu.adapters.process_end import call_at_end


def test_it_calls_back_when_a_process_ends(program):
    child, ended = program("input()"), threading.Event()
    call_at_end(child.pid, ended.set)
    assert not ended.is_set()
    child.kill()
    assert ended.wait(10)


def test_it_never_calls_back_for_a_process_that_is_gone(program):
    child = program("input()")
    child.kill()
    before = threading.active_count()
    call_at_end(child.pid, os.abort)
    call_at_end(None, os.abort)
    assert threading.active_count() == before
