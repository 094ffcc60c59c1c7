"""The tree of errors."""

import inspect
import re

import pytest

from jupyter_gpu.core import errors

TREE = [value for value in vars(errors).values() if inspect.isclass(value)]


@pytest.mark.parametrize("error", TREE)
def test_one_except_catches_all(error):
    assert issubclass(error, errors.GPUError)


@pytest.mark.parametrize(
    ("error", "builtin", "exit_code"),
    [
        (errors.RequestError, ValueError, 2),
        (errors.UnknownOption, ValueError, 2),
        (errors.ImpossibleRequest, ValueError, 2),
        (errors.NoDeviceAvailable, RuntimeError, 75),
        (errors.SimulationError, ValueError, 2),
        (errors.UsageError, ValueError, 2),
        (errors.StoreError, OSError, 1),
        (errors.KernelspecError, RuntimeError, 1),
    ],
)
def test_an_error_is_its_builtin_too_and_knows_its_exit_status(error, builtin, exit_code):
    assert issubclass(error, builtin)
    assert error.exit_code == exit_code


def test_the_drawing_names_errors_that_exist():
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__))
    assert drawn <= {error.__name__ for error in TREE}


def test_a_request_error_holds_its_data_and_writes_its_sentence():
    error = errors.RequestError("gpus", "two", "a number")
    assert (error.option, error.given, error.accepted) == ("gpus", "two", "a number")
    assert str(error) == "gpus: 'two' is not a number"


def test_an_impossible_request_says_its_sentence():
    assert str(errors.ImpossibleRequest("9 GPUs are asked for")) == "9 GPUs are asked for"


def test_a_store_error_says_its_sentence():
    assert str(errors.StoreError("It is a pipe.")) == "It is a pipe."


def test_what_was_given_is_told_shortly():
    said = str(errors.RequestError("devices", "1" * 5000, "a list"))
    assert len(said) < 200
    assert said.endswith("… is not a list")
