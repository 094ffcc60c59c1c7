"""Fixtures for tests that need a driver: import those you use into the test module."""

import pytest

from doubles.builder import build
from doubles.machine import DriverDouble


@pytest.fixture(scope="session")
def driver_libraries(tmp_path_factory):
    """The folder with the doubles of libnvidia-ml and libcuda, built once."""
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def old_driver_libraries(tmp_path_factory):
    """The same for a driver that lacks the functions of 510 and later."""
    return build(tmp_path_factory.mktemp("old-driver"), old=True)


@pytest.fixture
def driver_double(driver_libraries, tmp_path):
    """A machine without GPUs until its ``write`` is called."""
    return DriverDouble(driver_libraries, tmp_path / "machine.json").write()


@pytest.fixture(scope="module")
def kept_reader(driver_libraries, tmp_path_factory):
    """A machine and a process that reads it, kept for a whole module because starting takes long.

    A pair: the DriverDouble, and ``read(sensors=True)``.
    """
    double = DriverDouble(
        driver_libraries, tmp_path_factory.mktemp("kept") / "machine.json"
    ).write()
    with double.reader() as read:
        yield double, read
