import json

import pytest

from jupyter_gpu.core.errors import UsageError
from jupyter_gpu.core.view import View
from jupyter_gpu.faces.commands.command import Command, Options, answer, explain


class Echo(Command):
    """A command that keeps what it was called with."""

    name = "echo"
    about = "Say it again."
    example = "  jupyter gpu echo"
    has_arguments = False

    def run(self, options, rest):
        self.called = (options.json, rest)
        return 0


class EchoRest(Echo):
    """One that takes words after --."""

    takes_rest = True


@pytest.mark.parametrize(("words", "as_json"), [([], False), (["--json"], True)])
def test_the_common_case_needs_no_parser(words, as_json):
    command = Echo()
    assert command.main(words) == 0
    assert command.called == (as_json, None)


def test_words_after_two_dashes_are_taken_as_they_are():
    command = EchoRest()
    command.main(["--json", "--", "--help", "--", "-1"])
    assert command.called == (True, ("--help", "--", "-1"))
    command.main(["--"])
    assert command.called == (False, ())


def test_a_command_that_takes_none_refuses_them():
    with pytest.raises(UsageError, match="nothing after --"):
        Echo().main(["--", "x"])


def test_help_is_shown_and_nothing_is_done(capsys):
    command = Echo()
    assert command.main(["--help"]) == 0
    assert "Say it again." in capsys.readouterr().out
    assert not hasattr(command, "called")


def test_an_answer_is_text_or_json(capsys):
    assert answer(Options(json=False), {"schema": 1}, View("Done")) == 0
    assert capsys.readouterr() == ("Done\n", "")
    assert answer(Options(json=True), {"schema": 1}, View("Done")) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1}


def test_an_explanation_goes_beside_the_answer(capsys):
    explain("Because.")
    assert capsys.readouterr() == ("", "Because.\n")
    explain("word " * 20 + "/path" * 20)
    lines = capsys.readouterr().err.splitlines()
    assert [len(line) > 80 for line in lines] == [False, False, True]
    assert lines[-1].strip() == "/path" * 20
