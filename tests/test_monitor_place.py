from types import SimpleNamespace

import pytest

from jupyter_gpu.faces.monitor_place import Place, place_of


def shell(parent):
    return SimpleNamespace(kernel=SimpleNamespace(get_parent=lambda: parent))


def request(*, allow_stdin=True, cell=None, message="m1"):
    return {
        "header": {"msg_id": message, "session": "page"},
        "metadata": {} if cell is None else {"cellId": cell},
        "content": {"allow_stdin": allow_stdin},
    }


def test_a_shell_without_a_kernel_is_a_terminal():
    assert place_of(SimpleNamespace()) == Place("text")


@pytest.mark.parametrize(
    ("parent", "kind"),
    [
        (request(cell="c"), "notebook"),
        (request(cell="c", allow_stdin=False), "notebook"),
        (request(), "notebook"),
        (request(allow_stdin=False), "batch"),
        ({}, "notebook"),
        (None, "notebook"),
        ({"header": None, "metadata": None, "content": None}, "notebook"),
    ],
)
def test_batch_runs_allow_no_input_and_name_no_cell(parent, kind):
    assert place_of(shell(parent)).kind == kind


def test_a_kernel_that_does_not_tell_is_taken_for_a_notebook():
    def fail():
        raise LookupError

    assert place_of(SimpleNamespace(kernel=SimpleNamespace(get_parent=fail))) == Place("notebook")
    assert place_of(SimpleNamespace(kernel=SimpleNamespace())) == Place("notebook")


def test_it_knows_when_its_cell_is_run_again():
    first = place_of(shell(request(cell="c", message="m1")))
    assert first == Place("notebook", "c", "m1", "page")
    assert place_of(shell(request(cell="c", message="m2"))).runs_again(first)
    assert not place_of(shell(request(cell="c", message="m1"))).runs_again(first)
    assert not place_of(shell(request(cell="d", message="m2"))).runs_again(first)
    assert not place_of(shell(request(message="m2"))).runs_again(place_of(shell(request())))
