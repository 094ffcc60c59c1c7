"""One reading of a device."""

import pytest

from jupyter_gpu.core.readings import Reading


@pytest.mark.parametrize(
    ("reading", "highest"),
    [
        (Reading(), None),
        (Reading(utilization_percent=40.0), 40.0),
        (Reading(utilization_percent=40.0, utilization_peak_percent=90.0), 90.0),
        (Reading(utilization_percent=40.0, utilization_peak_percent=0.0), 0.0),
    ],
)
def test_the_highest_load_is_the_peak_where_readings_were_merged(reading, highest):
    assert reading.highest_percent == highest


def test_what_was_not_asked_is_unknown_and_no_processes_are_something_else():
    assert Reading().processes is None
    assert Reading(processes=()) != Reading()
