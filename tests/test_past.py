"""The last minutes: exact where they are new, bounded however long they last."""

import itertools
import threading
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpu.core.live import CellSpan, Point
from jupyter_gpu.core.past import (
    EXACT_POINTS,
    MOST_CELLS,
    MOST_DEVICES,
    MOST_POINTS,
    Keeper,
    Points,
)


def fill(keeper, count, start=0, every=1.0):
    for number in range(start, start + count):
        keeper.add({"GPU-1": Point(number * every, number, 1, float(number % 100), 50.0, 40)})


def points_of(keeper):
    return list(keeper.past().of("GPU-1"))


def test_all_points_are_kept_exactly_until_there_are_too_many():
    keeper = Keeper()
    fill(keeper, MOST_POINTS)
    assert [point.at for point in points_of(keeper)] == list(range(MOST_POINTS))


def test_then_old_ones_are_merged_and_the_newest_are_not():
    keeper = Keeper()
    fill(keeper, 10 * MOST_POINTS)
    points = points_of(keeper)
    assert len(points) <= MOST_POINTS
    newest = points[-EXACT_POINTS:]
    assert [point.memory_used_bytes for point in newest] == list(
        range(10 * MOST_POINTS - EXACT_POINTS, 10 * MOST_POINTS)
    )
    times = [point.at for point in points]
    assert times == sorted(times)
    assert times[0] == 0
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) <= 64, "what is old is coarse evenly, not the coarser the older it is"


def test_merged_points_have_the_highest_memory_and_the_mean_load():
    keeper = Keeper()
    for at in range(MOST_POINTS + 1):
        high = at % 2
        keeper.add({"GPU-1": Point(at, high * 8, high * 4, high * 100.0, high * 300.0, high * 60)})
    first = points_of(keeper)[0]
    assert (first.at, first.memory_used_bytes, first.memory_here_bytes) == (0, 8, 4)
    assert (first.utilization_percent, first.power_watts) == (50.0, 150.0)
    assert first.temperature_celsius == 60


def test_what_was_unknown_does_not_count_when_points_are_merged():
    keeper = Keeper()
    for at in range(MOST_POINTS + 1):
        keeper.add({"GPU-1": Point(at, None, None, 30.0 if at % 2 else None)})
    first = points_of(keeper)[0]
    assert (first.memory_used_bytes, first.utilization_percent) == (None, 30.0)
    assert first.power_watts is None


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.1, 1.0, 5.0, 7200.0]), min_size=1, max_size=30))
def test_whatever_the_times_it_is_bounded_in_order_and_the_mean_is_right(steps):
    steps = list(itertools.islice(itertools.cycle(steps), 4000))
    keeper, at, loads = Keeper(), 1.7e9, []
    for number, step in enumerate(steps):
        at += step
        loads.append(float(number % 7))
        keeper.add({"GPU-1": Point(at, number, utilization_percent=loads[-1])})
    points = points_of(keeper)
    assert len(points) <= MOST_POINTS
    assert points == sorted(points, key=lambda point: point.at)
    series = keeper._series["GPU-1"]
    assert sum(series._weights) == len(steps)
    total = sum(
        point.utilization_percent * weight
        for point, weight in zip(points, series._weights, strict=True)
    )
    assert total == pytest.approx(sum(loads))
    assert max(point.memory_used_bytes for point in points) == len(steps) - 1


def test_what_was_handed_out_does_not_change():
    keeper = Keeper()
    fill(keeper, 100)
    keeper.cell_begins(1, 3.0)
    early = keeper.past()
    before = (list(early.of("GPU-1")), early.cells)
    fill(keeper, 3 * MOST_POINTS, start=100)
    keeper.cell_ends(5.0)
    keeper.shift(-1000)
    assert (list(early.of("GPU-1")), early.cells) == before


def test_handing_out_copies_no_points():
    keeper = Keeper()
    fill(keeper, MOST_POINTS)
    tracemalloc.start()
    try:
        kept = [keeper.past() for _ in range(100)]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(kept) == 100
    assert size < 100 * 2000


def test_it_reads_like_a_tuple():
    points = [Point(float(at)) for at in range(10)]
    view = Points(points)
    points.append(Point(99.0))
    assert len(view) == 10
    assert (view[0].at, view[-1].at, view[9].at) == (0, 9, 9)
    assert [point.at for point in view[-3:]] == [7, 8, 9]
    assert [point.at for point in view[::4]] == [0, 4, 8]
    assert [point.at for point in reversed(view)] == list(range(9, -1, -1))
    for wrong in (10, -11):
        with pytest.raises(IndexError):
            view[wrong]


def test_another_thread_may_read_while_it_is_filled():
    keeper, wrong, done = Keeper(), [], threading.Event()
    fill(keeper, 1)

    def read():
        while not done.is_set():
            times = [point.at for point in keeper.past().of("GPU-1")]
            if times != sorted(times) or times[0] != 0:
                wrong.append(times)

    thread = threading.Thread(target=read)
    thread.start()
    fill(keeper, 6 * MOST_POINTS, start=1)
    done.set()
    thread.join(10)
    assert not thread.is_alive()
    assert wrong == []


def test_memory_does_not_grow_with_an_hour_of_ticks_once_it_is_full():
    keeper = Keeper()

    def hour(number):
        for second in range(3600):
            at = 1.7e9 + number * 3600 + second
            keeper.add({f"GPU-{one}": Point(at, second, second, 1.5, 2.5, 40) for one in range(2)})
            if second % 4 == 0:
                keeper.cell_begins(second, at)

    hour(0)
    tracemalloc.start()
    try:
        hour(1)
        hour(2)
        first, _ = tracemalloc.get_traced_memory()
        hour(3)
        hour(4)
        second, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Between two mergers it breathes by the points of one device's newest part each.
    breath = 2 * (MOST_POINTS - 2 * EXACT_POINTS) * 300
    assert abs(second - first) < breath
    assert all(len(points) <= MOST_POINTS for points in keeper.past().points.values())


def test_devices_that_come_and_go_are_bounded_too():
    keeper = Keeper()
    for number in range(MOST_DEVICES + 50):
        keeper.add({f"GPU-{number}": Point(float(number))})
    past = keeper.past()
    assert len(past.points) == MOST_DEVICES
    assert not past.of("GPU-0")
    assert past.of(f"GPU-{MOST_DEVICES + 49}")


def test_cells_have_a_beginning_and_an_end_and_the_oldest_are_dropped():
    keeper = Keeper()
    keeper.cell_ends(1.0)
    assert keeper.past().cells == ()
    keeper.cell_begins(1, 2.0)
    assert keeper.past().cells == (CellSpan(1, 2.0),)
    keeper.cell_ends(3.0)
    keeper.cell_ends(4.0)
    keeper.cell_begins(None, 5.0)
    keeper.cell_begins(3, 6.0)
    assert keeper.past().cells == (
        CellSpan(1, 2.0, 3.0),
        CellSpan(None, 5.0, 6.0),
        CellSpan(3, 6.0),
    )
    for number in range(2 * MOST_CELLS):
        keeper.cell_begins(number, 10.0 + number)
    cells = keeper.past().cells
    assert len(cells) == MOST_CELLS
    assert cells[-1].number == 2 * MOST_CELLS - 1


def test_everything_moves_with_the_clock():
    keeper = Keeper()
    fill(keeper, 3, start=100)
    keeper.cell_begins(1, 100.0)
    keeper.cell_ends(101.0)
    keeper.cell_begins(2, 102.0)
    keeper.shift(-50.0)
    assert [point.at for point in points_of(keeper)] == [50, 51, 52]
    assert keeper.past().cells == (CellSpan(1, 50.0, 51.0), CellSpan(2, 52.0))


def test_a_point_that_comes_late_is_put_at_the_end():
    keeper = Keeper()
    keeper.add({"GPU-1": Point(5.0, 1)})
    keeper.add({"GPU-1": Point(4.5, 2)})
    assert points_of(keeper) == [Point(5.0, 1), Point(5.0, 2)]
