"""What is shown under a cell; the sentences themselves are tested where they are made."""

import pytest
from support_cli import kernel, overview

from jupyter_gpu.cell_report import report
from jupyter_gpu.cell_watch import CellEnd
from jupyter_gpu.core.history import Change

EXPORT = "!export CUDA_VISIBLE_DEVICES=1"
LATE = overview(value="1", process=kernel(launched="0", now="1", state="frozen", in_force=(0,)))
IN_TIME = overview(value="1", process=kernel(launched="0", now="1"))
CHANGE = Change(3, "0", "1", "%env")


class Asked:
    """Reads a machine, and counts how often."""

    def __init__(self, seen):
        self.seen, self.times = seen, 0

    def __call__(self):
        self.times += 1
        return self.seen


@pytest.mark.parametrize(
    ("ended", "source", "seen", "titles", "asked"),
    [
        (CellEnd(None, False), "x = 1", LATE, [], 0),
        (CellEnd(None, False), "# CUDA_VISIBLE_DEVICES", LATE, [], 0),
        (None, EXPORT, LATE, [], 0),
        (None, "", LATE, [], 0),
        (CellEnd(CHANGE, True), "", LATE, ["that changes nothing in this kernel"], 1),
        (CellEnd(CHANGE, True), EXPORT, LATE, ["that changes nothing in this kernel"], 1),
        (CellEnd(CHANGE, False), "", IN_TIME, [], 1),
        (CellEnd(None, False), EXPORT, IN_TIME, ["The ! line changed nothing here"], 1),
        (CellEnd(None, False), f"{EXPORT} && python x.py", IN_TIME, [], 0),
    ],
)
def test_the_machine_is_read_only_where_there_is_something_to_say(
    ended, source, seen, titles, asked
):
    read = Asked(seen)
    views = report(ended, source, None, read)
    assert len(views) == len(titles)
    assert all(title in view.title for title, view in zip(titles, views, strict=True))
    assert read.times == asked


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyboardInterrupt(), SystemExit(1), ZeroDivisionError()]
)
def test_an_error_that_has_nothing_to_do_with_gpus_is_left_alone(error):
    read = Asked(IN_TIME)
    assert report(CellEnd(None, False), "x", error, read) == ()
    assert report(None, "x", error, read) == ()
    assert read.times == 0


def test_an_error_about_gpus_is_explained_below_what_is_said_of_the_variable():
    read = Asked(LATE)
    error = RuntimeError("CUDA error: invalid device ordinal")
    views = report(CellEnd(CHANGE, True), "model.to('cuda:1')", error, read)
    assert "that changes nothing in this kernel" in views[0].title
    assert len(views) == 2
    # A cell inside another one fails by itself.
    assert len(report(None, "model.to('cuda:1')", error, read)) == 1
