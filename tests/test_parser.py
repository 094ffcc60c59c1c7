import pytest

from jupyter_gpu.core.errors import UsageError
from jupyter_gpu.faces.commands.map import COMMAND as MAP
from jupyter_gpu.faces.commands.run import COMMAND as RUN
from jupyter_gpu.faces.parser import parse


def test_options_are_read():
    options = parse(RUN, ["--gpus", "2", "--json"])
    assert (options.gpus, options.json, options.model) == ("2", True, None)


def test_a_missing_value_is_wrong_usage_with_the_usage():
    with pytest.raises(UsageError, match="usage: jupyter gpu run"):
        parse(RUN, ["--gpus"])


def test_no_option_may_be_shortened():
    with pytest.raises(UsageError, match="Did you mean '--gpus'"):
        parse(RUN, ["--gpu", "2"])


def test_a_word_too_many_gets_the_commands_own_hint():
    with pytest.raises(UsageError, match=r"'python' is not understood.* The command stands after"):
        parse(RUN, ["python"])
    with pytest.raises(UsageError, match="'2' is not understood"):
        parse(MAP, ["1", "2"])


def test_help_gives_no_options(capsys):
    assert parse(MAP, ["--help"]) is None
    assert "Example:" in capsys.readouterr().out
