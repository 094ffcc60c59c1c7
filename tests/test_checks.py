import pytest

from jupyter_gpu.core.checks import Check, checks_answer, halves


def test_a_check_is_json_with_every_key():
    assert Check("driver", "ok", "fine").as_json() == {
        "name": "driver",
        "status": "ok",
        "found": "fine",
        "fix": None,
    }


def test_the_answer_has_a_schema_and_every_check():
    answer = checks_answer((Check("a", "ok", "x"), Check("b", "warn", "y", "z")))
    assert answer["schema"] == 1
    assert [check["name"] for check in answer["checks"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("fix", "is_command"),
    [
        ("%pip install torch", True),
        ("sudo jupyter gpu setup", True),
        ("/srv/python -m pip install torch", True),
        ("kill 4711", True),
        ("restart the kernel", False),
        (None, False),
    ],
)
def test_a_command_to_copy_is_told_from_a_sentence(fix, is_command):
    assert Check("a", "warn", "x", fix).fix_is_command == is_command


@pytest.mark.parametrize(
    ("problem", "parts"),
    [
        ("It is lost; reboot the machine.", ("It is lost", "reboot the machine")),
        ("It is lost.", ("It is lost", "")),
    ],
)
def test_a_drivers_sentence_has_two_halves(problem, parts):
    assert halves(problem) == parts
