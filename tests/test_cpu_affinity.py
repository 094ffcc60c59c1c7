import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpu.adapters.cpu_affinity import allowed_cpus, bind, nearest_allowed
from jupyter_gpu.adapters.processes import look

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system lets nobody choose CPUs"
)

# What the next tests do where Python has no such functions, which is macOS and Windows.
ELSEWHERE = """
import os
del os.sched_getaffinity, os.sched_setaffinity
from jupyter_gpu.adapters.cpu_affinity import allowed_cpus, bind, nearest_allowed
print(allowed_cpus(), nearest_allowed((0, 1)), bind(os.getpid(), (0,)), sep="|")
"""
# A program with threads: it says when they are there, and starts more when it is told to.
THREADS = """
import os, threading
def start(count):
    here = threading.Barrier(count + 1)
    for _ in range(count):
        threading.Thread(target=lambda: (here.wait(), threading.Event().wait()), daemon=True).start()
    here.wait()
start(5)
print("started")
while input() == "more":
    start(3)
    print(*sorted(os.sched_getaffinity(0)))
"""
# A program that starts one thread after another, as long as it lives.
RESTLESS = """
import threading
def one():
    threading.Event().wait(0.002)
def go():
    while True:
        threading.Thread(target=one, daemon=True).start()
        threading.Event().wait(0.0001)
threading.Thread(target=go, daemon=True).start()
print("started")
input()
"""
# A user who reaches for a process that is not theirs. What is imported may stand where only root
# can go, so that comes first.
FOREIGN = """
import os
from jupyter_gpu.adapters.cpu_affinity import bind
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
pid, cpu = map(int, input().split())
print(bind(pid, (cpu,)))
"""


@pytest.fixture
def one_cpu():
    """A CPU of those that may be used here; the affinity of this thread is kept as it was."""
    before = os.sched_getaffinity(0)
    yield max(before)
    os.sched_setaffinity(0, before)


@pytest.fixture
def two_cpus(one_cpu):
    """The CPUs that may be used here, of which there have to be two to choose from."""
    allowed = frozenset(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("needs two CPUs to choose from")
    return allowed


def affinities(pid):
    """On which CPUs each thread of a process may run."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found.add(frozenset(os.sched_getaffinity(int(task.name))))
        except ProcessLookupError:  # this thread has ended meanwhile
            continue
    return found


def test_the_allowed_cpus_are_those_of_this_thread(one_cpu):
    assert allowed_cpus() == os.sched_getaffinity(0)
    os.sched_setaffinity(0, {one_cpu})
    assert allowed_cpus() == {one_cpu}


def test_only_near_cpus_that_may_be_used_are_taken(two_cpus, one_cpu):
    first, *_ = sorted(two_cpus)
    assert nearest_allowed((100_000, first)) == (first,)
    assert nearest_allowed({one_cpu}) == (one_cpu,)


@pytest.mark.parametrize(
    "cpus",
    [None, (), (100_000, 100_001), range(100_000)],
    ids=["unknown", "none", "none that may be used", "all that may be used"],
)
def test_nothing_is_to_be_done_where_it_would_change_nothing(cpus):
    assert nearest_allowed(cpus) is None


def test_every_thread_of_a_process_is_bound(program, two_cpus, one_cpu):
    child = program(THREADS)
    assert child.read() == "started"
    assert affinities(child.pid) == {two_cpus}
    assert bind(child.pid, (one_cpu,)) is None
    assert affinities(child.pid) == {frozenset({one_cpu})}
    assert child.tell("more") == str(one_cpu)
    assert affinities(child.pid) == {frozenset({one_cpu})}
    assert os.sched_getaffinity(0) == two_cpus


def test_threads_that_come_and_go_meanwhile_are_no_trouble(program, two_cpus, one_cpu, eventually):
    child = program(RESTLESS)
    assert child.read() == "started"
    for _ in range(200):
        assert bind(child.pid, two_cpus) is None
        assert bind(child.pid, [one_cpu]) is None
    assert eventually(lambda: affinities(child.pid) == {frozenset({one_cpu})})


def test_a_process_is_bound_as_soon_as_it_is_there(two_cpus, one_cpu):
    said = "import os; input(); print(sorted(os.sched_getaffinity(0)))"
    with subprocess.Popen(
        [sys.executable, "-c", said], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert bind(child.pid, (one_cpu,)) is None
        out, _ = child.communicate("\n")
    assert out == f"[{one_cpu}]\n"


def test_a_process_that_has_ended_is_said_to_have_ended(one_cpu, eventually):
    child = subprocess.Popen([sys.executable, "-c", ""])
    eventually(lambda: look(child.pid).state == "Z")
    words = f"Process {child.pid} is not bound to CPUs {one_cpu}: it has ended."
    assert bind(child.pid, (one_cpu,)) == words
    child.wait()
    assert bind(child.pid, (one_cpu,)) == words


@pytest.mark.parametrize(
    ("pid", "cpus", "words"),
    [
        (0, (0,), "Process 0 is not bound to CPUs 0: that is no process."),
        (-1, (0,), "that is no process"),
        (2**40, (0,), "Process 1099511627776 is not bound to CPUs 0: "),
        (None, (), "is not bound to CPUs –: none of them may be used."),
        (None, (100_000, 100_001), "CPUs 100000-100001: none of them may be used."),
        (None, (-5,), "is not bound to CPUs -5: "),
    ],
)
def test_what_cannot_be_is_a_sentence(pid, cpus, words, one_cpu):
    before = os.sched_getaffinity(0)
    assert words in bind(os.getpid() if pid is None else pid, cpus)
    assert os.sched_getaffinity(0) == before


@pytest.mark.usefixtures("needs_root")
def test_another_users_process_is_left_alone(program, one_cpu):
    stranger = program(FOREIGN)
    before = os.sched_getaffinity(0)
    words = f"Process {os.getpid()} is not bound to CPUs {one_cpu}: that is not permitted."
    assert stranger.tell(f"{os.getpid()} {one_cpu}") == words
    assert os.sched_getaffinity(0) == before


def test_where_the_system_has_no_affinity_nothing_is_chosen(program):
    child = program(ELSEWHERE)
    allowed, nearest, words = child.read().split("|")
    assert (allowed, nearest) == ("None", "None")
    assert words == (
        f"Process {child.pid} is not bound to CPUs 0: this system does not let one choose."
    )
