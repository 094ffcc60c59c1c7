from jupyter_gpu.faces.monitor_ends import CellEnds


def test_it_calls_those_who_want_to_know_as_long_as_they_do():
    ends, called = CellEnds(), []

    def first():
        called.append(1)

    def second():
        called.append(2)

    ends.add(first)
    ends.add(second)
    ends.add(first)
    ends.cell_begins(3)
    assert called == []
    ends.cells_end()
    ends.remove(first)
    ends.remove(first)
    ends.cells_end()
    assert called == [1, 2, 2]


def test_one_that_fails_is_told_of_and_called_no_more(capsys):
    ends, called = CellEnds(), []
    ends.add(lambda: 1 / 0)
    ends.add(lambda: called.append(1))
    ends.cells_end()
    ends.cells_end()
    assert called == [1, 1]
    said = capsys.readouterr().err
    assert said == "The GPU monitor is no longer renewed (ZeroDivisionError: division by zero).\n"


def test_one_may_leave_while_it_is_called():
    ends, called = CellEnds(), []

    def once():
        called.append(1)
        ends.remove(once)

    ends.add(once)
    ends.add(lambda: called.append(2))
    ends.cells_end()
    ends.cells_end()
    assert called == [1, 2, 2]
