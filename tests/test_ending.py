"""Processes are ended, and no other that has their number by now."""

import errno
import os
import signal
import sys

import pytest

from jupyter_gpu.adapters import processes
from jupyter_gpu.adapters.ending import Outcome, Targets, pidfd_opener

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

WAIT = "print('ready'); import sys; sys.stdin.read()"
DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); sys.stdin.read()"


def forbidden(pid):
    raise OSError(errno.ENOSYS, "not in this sandbox")


def failing(pid):
    raise ProcessLookupError(errno.ESRCH, "gone")


# With pidfds, without, and where they are forbidden.
OPENERS = {"pidfd": pidfd_opener(), "none": None, "forbidden": forbidden}


@pytest.fixture(params=OPENERS.values(), ids=OPENERS)
def opener(request):
    return request.param


@pytest.fixture
def child(program):
    """A function that starts a process, and returns it with its start time."""

    def start(code=WAIT, **options):
        started = program(code, **options)
        started.read()
        return started, processes.look(started.pid).start

    return start


def test_here_processes_are_held_by_pidfds():
    assert pidfd_opener() is os.pidfd_open


def test_a_process_is_asked_to_end(child, opener):
    one, start = child()
    with Targets([(one.pid, start)], opener=opener) as targets:
        assert targets.end() == (Outcome(one.pid, "TERM"),)
    assert one.process.wait(timeout=10) == -signal.SIGTERM


def test_one_that_does_not_end_is_killed(child, opener):
    one, start = child(DEAF)
    with Targets([(one.pid, start)], opener=opener) as targets:
        assert targets.end(grace_seconds=0.05) == (Outcome(one.pid, "KILL"),)
    assert one.process.wait(timeout=10) == -signal.SIGKILL


def test_of_several_only_those_that_do_not_end_are_killed(child, opener):
    (soft, first), (deaf, second) = child(), child(DEAF)
    with Targets([(soft.pid, first), (deaf.pid, second)], opener=opener) as targets:
        outcomes = targets.end(grace_seconds=0.3)
    assert outcomes == (Outcome(soft.pid, "TERM"), Outcome(deaf.pid, "KILL"))


def test_a_stopped_process_is_ended_too(child, opener, eventually):
    one, start = child()
    one.signal(signal.SIGSTOP)
    eventually(lambda: processes.look(one.pid).state == "T")
    with Targets([(one.pid, start)], opener=opener) as targets:
        assert targets.end(grace_seconds=0.05) == (Outcome(one.pid, "KILL"),)


def test_a_number_that_is_another_processs_by_now_is_not_touched(child, opener):
    one, start = child()
    with Targets([(one.pid, start - 1)], opener=opener) as targets:
        assert targets.end(grace_seconds=0.05) == (Outcome(one.pid),)
    assert one.process.poll() is None
    assert processes.look(one.pid).state != "Z"


def test_one_that_ends_after_it_was_held_has_ended_by_itself(child, opener):
    one, start = child()
    with Targets([(one.pid, start)], opener=opener) as targets:
        one.kill()
        assert targets.end() == (Outcome(one.pid),)


def test_one_that_is_a_zombie_by_then_has_ended_by_itself(child, opener, eventually):
    one, start = child()
    with Targets([(one.pid, start)], opener=opener) as targets:
        one.signal(signal.SIGKILL)
        eventually(lambda: processes.look(one.pid).state == "Z")
        assert targets.end() == (Outcome(one.pid),)


def test_one_that_is_gone_before_is_not_held(child):
    one, start = child()
    one.kill()
    for opener in (*OPENERS.values(), failing):
        with Targets([(one.pid, start)], opener=opener) as targets:
            assert targets.end() == (Outcome(one.pid),)


def test_another_users_process_is_refused_with_the_reason(child, program, needs_root):
    theirs, start = child()
    code = (
        "import sys\n"
        "from jupyter_gpu.adapters.ending import Targets, pidfd_opener\n"
        "for opener in (pidfd_opener(), None):\n"
        f"    with Targets([({theirs.pid}, {start})], opener=opener) as targets:\n"
        "        print(targets.end(grace_seconds=0.05))\n"
    )
    asking = program(code, uid=12001)
    for _ in range(2):
        assert asking.read() == str((Outcome(theirs.pid, None, "this user may not end it"),))
    assert theirs.process.poll() is None


def test_no_descriptor_is_left_open(child):
    one, start = child()
    before = len(os.listdir("/proc/self/fd"))
    for wanted in (start, start - 1):
        with Targets([(one.pid, wanted)], opener=pidfd_opener()):
            held = len(os.listdir("/proc/self/fd")) - before
            assert held == (wanted == start)
        assert len(os.listdir("/proc/self/fd")) == before
