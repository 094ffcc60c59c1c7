"""One listener of a feed."""

import math

from support_monitor import moment

from jupyter_gpu.watching import Watching


def watching(listener, interval=1.0):
    ended = []
    made = Watching(ended.append, listener, interval, ())
    return made, ended


def test_calls_stay_on_their_beat_after_some_were_missed():
    made, _ = watching(list)
    assert made.due == math.inf
    made.is_due_at(10.0)
    made.was_called_at(10.0)
    assert made.due == 11.0
    made.was_called_at(14.3)
    assert made.due == 15.0


def test_after_a_call_another_one_waits_a_little():
    made, _ = watching(list)
    made.is_due_at(10.0)
    made.was_called_at(10.0)
    made.is_due_at(10.1)
    assert made.due == 10.5


def test_it_may_fail_twice_in_a_row_and_not_thrice():
    outcomes = [True, True, False, True, True, True]

    def listener(_):
        if outcomes.pop(0):
            raise OSError("a page that goes away")

    made, ended = watching(listener)
    shown = moment()
    for _ in range(5):
        made.tell(shown)
    assert ended == []
    made.tell(shown)
    assert ended == [made]
