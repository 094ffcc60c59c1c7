"""Processes as /proc shows them."""

import os
import sys

import pytest

from jupyter_gpu.adapters import locks, processes
from jupyter_gpu.core.layout import LEASE_IDS, Range
from jupyter_gpu.core.leases import ProcessRef

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

WAIT = "import sys; print('ready'); sys.stdin.read()"
# Prints the pid of a child that has ended and is not waited for.
ZOMBIE = "import os, sys; pid = os.fork() or os._exit(0); print(pid); sys.stdin.read()"
NO_SUCH_PID = 2**22 + 1


def test_a_process_is_seen_as_it_is(program):
    child = program(WAIT)
    child.read()
    info = processes.look(child.pid)
    assert (info.pid, info.uid, info.parent) == (child.pid, os.getuid(), os.getpid())
    assert info.session == child.pid
    assert info.command.startswith(sys.executable)
    assert info.state in "RS"
    assert info.user == processes.user_name(os.getuid())


@pytest.mark.parametrize("pid", [NO_SUCH_PID, -1, 10**4000])
def test_what_is_no_process_is_none(pid):
    assert processes.look(pid) is None
    assert processes.command_line(pid) is None


def test_a_name_with_blanks_and_parentheses_is_read_right(program):
    name = ") S 1 (a b"
    child = program(f"open('/proc/self/comm', 'w').write({name!r}); print('ready'); input()")
    child.read()
    info = processes.look(child.pid)
    assert (info.parent, info.session) == (os.getpid(), child.pid)


def test_a_command_line_is_safe_to_print(program):
    child = program(WAIT, arguments=["\x1b[31m\n", "x" * 900])
    child.read()
    command = processes.command_line(child.pid)
    assert command.isprintable()
    assert len(command) == 200


def test_of_a_program_in_the_command_its_first_line_is_shown(program):
    child = program(f"\n{WAIT}\nprint('over')\n", arguments=["end"])
    child.read()
    assert processes.command_line(child.pid) == f"{sys.executable} -u -c {WAIT}… end"


def test_a_user_without_a_name_is_a_number():
    assert processes.user_name(0) == "root"
    assert processes.user_name(54321) == "54321"


def test_a_reference_stands_for_one_process_only(program):
    child = program(WAIT)
    child.read()
    reference = processes.reference(child.pid)
    assert processes.is_alive(reference)
    child.kill()
    assert processes.is_alive(reference) is False


def test_a_later_process_with_the_same_pid_is_not_the_same():
    here = processes.reference(os.getpid())
    assert processes.is_alive(ProcessRef(here.pid, here.start - 1, here.namespace)) is False
    assert processes.is_alive(ProcessRef(here.pid, None, here.namespace)) is True


@pytest.mark.parametrize("namespace", [None, 1])
def test_a_process_of_another_pid_namespace_cannot_be_told(namespace):
    assert processes.is_alive(ProcessRef(os.getpid(), None, namespace)) is None


def test_a_reference_to_nothing_is_dead():
    assert processes.is_alive(processes.reference(NO_SUCH_PID)) is False


def test_a_process_that_has_ended_and_is_not_waited_for_is_dead(program, eventually):
    parent = program(ZOMBIE)
    child = int(parent.read())
    eventually(lambda: processes.look(child).state == "Z")
    assert processes.is_alive(processes.reference(child)) is False


def test_all_pids_are_listed():
    pids = set(processes.all_pids())
    assert os.getpid() in pids
    assert 1 in pids


class TestHolders:
    """Who holds a lock is found in /proc, where one may look."""

    WHERE = Range(LEASE_IDS.start + 5, 3)

    @pytest.fixture
    def lock(self, tmp_path):
        (tmp_path / "lock").touch()
        fd = os.open(tmp_path / "lock", os.O_RDWR)
        yield fd
        os.close(fd)

    def test_a_holder_is_found_and_so_is_who_inherited_it(self, lock, program):
        locks.try_lock(lock, self.WHERE)
        child = program(WAIT, pass_fds=(lock,))
        child.read()
        found = processes.holders_of(os.fstat(lock), self.WHERE)
        assert sorted(found) == sorted((os.getpid(), child.pid))

    @pytest.mark.parametrize(
        ("offset", "length", "touches"),
        [(5, 1, True), (7, 1, True), (8, 1, False), (4, 1, False), (0, 6, True), (0, 99, True)],
    )
    def test_only_who_holds_a_part_of_the_range_counts(self, lock, offset, length, touches):
        locks.try_lock(lock, self.WHERE)
        asked = Range(LEASE_IDS.start + offset, length)
        assert (processes.holders_of(os.fstat(lock), asked) != ()) == touches

    def test_an_open_file_without_a_lock_does_not_count(self, lock):
        assert processes.holders_of(os.fstat(lock), self.WHERE) == ()

    def test_a_lock_to_the_end_of_time_touches_all_behind_it(self, lock):
        locks.try_lock(lock, Range(100, (1 << 63) - 100))
        assert processes.holders_of(os.fstat(lock), self.WHERE) == (os.getpid(),)
        assert processes.holders_of(os.fstat(lock), Range(0, 100)) == ()

    def test_a_lock_on_another_file_does_not_count(self, lock, tmp_path):
        with open(tmp_path / "other", "w") as other:
            locks.try_lock(other.fileno(), self.WHERE)
            assert processes.holders_of(os.fstat(lock), self.WHERE) == ()
