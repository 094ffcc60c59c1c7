import os
import signal
import sys

import pytest

from jupyter_gpu.adapters.child import Child
from jupyter_gpu.core.errors import CommandError

PYTHON = sys.executable


def run(*command, pass_fds=(), environment=None):
    with Child(command, environment or dict(os.environ), pass_fds) as child:
        return child.wait()


def test_its_status_is_the_commands():
    assert run("sh", "-c", "exit 7") == 7
    assert run("true") == 0


def test_a_signal_that_ends_it_is_added_to_128():
    assert run("sh", "-c", "kill -9 $$") == 128 + 9


def test_it_has_the_environment_and_the_descriptors_it_is_given():
    read, write = os.pipe()
    code = f"import os; os.write({write}, os.environ['WORD'].encode())"
    assert run(PYTHON, "-c", code, pass_fds=(write,), environment={"WORD": "given"}) == 0
    assert os.read(read, 99) == b"given"
    os.close(read)
    os.close(write)


def test_it_begins_with_the_signals_that_its_parent_began_with():
    code = "import signal, sys; sys.exit(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
    assert run(PYTHON, "-c", code) == 0
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


@pytest.mark.parametrize(
    ("command", "code"), [("/no/such/command", 127), ("/etc/passwd", 126), ("/", 126)]
)
def test_what_cannot_be_started_is_a_sentence_with_the_shells_code(command, code):
    with pytest.raises(CommandError, match=command) as raised:
        run(command)
    assert raised.value.exit_code == code
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on(number, program):
    code = (
        "import os, sys\n"
        "from jupyter_gpu.adapters.child import Child\n"
        "inner = 'import signal; print(\"ready\", flush=True); signal.pause()'\n"
        "with Child((sys.executable, '-c', 'import signal; signal.signal(signal.SIGINT, "
        "signal.SIG_DFL); exec(' + repr(inner) + ')'), dict(os.environ), ()) as child:\n"
        "    print(child.wait(), flush=True)\n"
    )
    parent = program(code)
    assert parent.read() == "ready"
    parent.signal(number)
    assert parent.read() == str(128 + number)
