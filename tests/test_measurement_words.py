import pytest

from jupyter_gpu.core.measurement import DeviceMeasurement
from jupyter_gpu.core.measurement_words import (
    EnergyScale,
    added_words,
    energy_words,
    load_words,
    memory_words,
    seconds_words,
)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0000123, "12 µs"),
        (0.0042, "4.2 ms"),
        (0.412, "412 ms"),
        (2.4149, "2.41 s"),
        (59.2, "59.2 s"),
        (185, "3 min 5 s"),
        (3599.6, "1 h 0 min"),
        (7380, "2 h 3 min"),
    ],
)
def test_a_time_in_words(seconds, words):
    assert seconds_words(seconds) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (None, "–"),
        (0, "0 MiB"),
        (1000, "0.0 MiB"),
        (600_000, "0.6 MiB"),
        (512 << 20, "512 MiB"),
        (61 << 30, "61.0 GiB"),
    ],
)
def test_memory_in_words(number, words):
    assert memory_words(number) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(None, "–"), (0, "+0 MiB"), (3 << 30, "+3.0 GiB"), (-(5 << 20), "−5 MiB")],
)
def test_what_was_added_has_a_sign(number, words):
    assert added_words(number) == words


def test_load_is_a_mean_and_a_peak():
    device = DeviceMeasurement(
        0, 0, "GPU-0", utilization_mean_percent=42.6, utilization_peak_percent=99
    )
    assert load_words(device) == "43 %, peak 99 %"
    assert load_words(DeviceMeasurement(0, 0, "GPU-0")) == "–"


@pytest.mark.parametrize(
    ("joules", "estimated", "words"),
    [
        (None, False, "–"),
        (0.0, False, "0.0 J"),
        (0.00385, True, "~3.9 mJ"),
        (0.16, False, "0.16 J"),
        (3.21, False, "3.2 J"),
        (512.4, True, "~512 J"),
        (99_000, False, "99000 J"),
        (123_400, False, "123 kJ"),
    ],
)
def test_energy_in_joules(joules, estimated, words):
    assert energy_words(joules, estimated=estimated) == words


@pytest.mark.parametrize(
    "energies", [(0.163,) * 3, (3.26, 0.2), (0.00385,) * 2, (60_499, 60_499), (0.0, 0.0)]
)
def test_rows_add_up_to_their_total_as_shown(energies):
    scale = EnergyScale.of(energies)
    shown = [float(energy_words(one, scale=scale).split()[0]) for one in energies]
    total = energy_words(sum(map(scale.rounded, energies)), scale=scale)
    assert float(total.split()[0]) == pytest.approx(sum(shown))
