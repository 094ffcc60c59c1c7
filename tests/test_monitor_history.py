import builtins
import json
import os
from datetime import datetime, timezone

import pytest

from jupyter_gpu.core.devices import Process
from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.core.live import CellSpan, Moment, Past, Point
from jupyter_gpu.core.readings import Reading
from jupyter_gpu.faces.monitor_history import (
    Seen,
    answer_of,
    cells_of,
    frame_of,
    in_utc,
    rows_of,
    seen_in,
)
from jupyter_gpu.overview import read_overview

PAST = Past(
    {
        "GPU-a": (Point(1.0, 10, 4, 50.0, 300.0, 40, 0), Point(3.0, 12)),
        "GPU-b": (Point(1.0, None),),
        "GPU-z": (Point(1.0, 7),),
    },
    (CellSpan(4, 0.5, 2.0), CellSpan(None, 2.5, 2.6), CellSpan(5, 3.0, None)),
)
SEEN = (Seen("GPU-a", 3, 0), Seen("GPU-b", 5))


def test_the_history_has_a_row_for_each_device_and_moment():
    rows = rows_of(PAST, SEEN)
    assert [(row["time"], row["uuid"], row["cell"]) for row in rows] == [
        ("1970-01-01T00:00:01.000+00:00", "GPU-a", 4),
        ("1970-01-01T00:00:01.000+00:00", "GPU-b", 4),
        ("1970-01-01T00:00:03.000+00:00", "GPU-a", 5),
    ]
    assert rows[0] == {
        "time": "1970-01-01T00:00:01.000+00:00",
        "cell": 4,
        "ordinal": 0,
        "index": 3,
        "uuid": "GPU-a",
        "memory_used_bytes": 10,
        "memory_here_bytes": 4,
        "utilization_percent": 50.0,
        "power_watts": 300.0,
        "temperature_celsius": 40,
    }
    assert rows[1]["ordinal"] is None
    assert rows[1]["memory_used_bytes"] is None
    json.dumps(rows)


@pytest.mark.parametrize(
    ("at", "cell"),
    [(0.4, None), (0.5, 4), (2.0, 4), (2.2, None), (2.55, None), (2.9, None), (9, 5)],
)
def test_a_row_names_the_cell_that_ran(at, cell):
    past = Past({"GPU-a": (Point(at),)}, PAST.cells)
    assert rows_of(past, SEEN)[0]["cell"] == cell


def test_cells_have_a_beginning_and_an_end():
    assert cells_of(PAST) == [
        {"cell": 4, "began": in_utc(0.5), "ended": in_utc(2.0)},
        {"cell": None, "began": in_utc(2.5), "ended": in_utc(2.6)},
        {"cell": 5, "began": in_utc(3.0), "ended": None},
    ]


def test_a_frame_has_times_as_pandas_has_them():
    pandas = pytest.importorskip("pandas")
    frame = frame_of(rows_of(PAST, SEEN))
    assert str(frame["time"].dt.tz) == "UTC"
    assert frame["time"][0] == pandas.Timestamp(1, unit="s", tz="UTC")
    assert list(frame["cell"]) == [4, 4, 5]
    assert list(frame_of([]).columns) == list(rows_of(PAST, SEEN)[0])


def test_without_pandas_a_frame_says_how_to_get_it(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.partition(".")[0] == "pandas":
            raise ImportError
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(GPUError, match="pip install pandas"):
        frame_of([])


def test_one_look_is_json_for_programs(simulate):
    simulate(
        {
            "gpus": [
                {"name": "NVIDIA H200", "uuid": "GPU-a", "memory_used_bytes": 5},
                {"name": "NVIDIA L4", "uuid": "GPU-b"},
            ]
        }
    )
    overview = read_overview({**os.environ, "CUDA_VISIBLE_DEVICES": "1"})
    now = datetime.fromtimestamp(5, timezone.utc)
    reading = Reading(7, 50.0, 300.0, temperature_celsius=40, processes=(Process(os.getpid(), 3),))
    moment = Moment(now, overview, {"GPU-b": reading}, PAST, running=True)
    answer = answer_of(moment, seen_in(overview, ("GPU-b", "GPU-a", "GPU-gone")))
    json.dumps(answer)
    assert answer["schema"] == 1
    assert answer["time"] == in_utc(5)
    assert answer["running"] is True
    assert answer["cells"] == cells_of(PAST)
    watched, other, gone = answer["devices"]
    assert (watched["ordinal"], watched["index"], watched["name"]) == (0, 1, "NVIDIA L4")
    assert watched["memory_used_bytes"] == 7
    assert watched["memory_here_bytes"] == 0  # no process of this kernel asks here
    assert watched["processes"][0]["pid"] == os.getpid()
    assert (other["ordinal"], other["index"], other["memory_used_bytes"]) == (None, 0, 5)
    assert (gone["ordinal"], gone["index"], gone["name"]) == (None, None, None)
    assert gone["problem"] == "NVML no longer lists it"
    assert [one.uuid for one in seen_in(overview, None)] == ["GPU-b"]
