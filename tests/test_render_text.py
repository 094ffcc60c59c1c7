import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.render_text import WIDTH, as_text, columns, wrapped, wrapped_lines
from jupyter_gpu.core.view import Column, Table, View

CELLS = st.text(st.characters(exclude_categories=("C", "Z")), max_size=120)
TABLE = Table("Rows", (Column("A"), Column("B", shrinks=True), Column("C", right=True)), ())


def with_rows(*rows):
    return Table(TABLE.caption, TABLE.columns, rows)


def test_the_answer_stands_first_and_the_machine_at_the_right_edge():
    first, *rest = as_text(View("2 of 8 GPUs are yours", "NVIDIA 580", lines=("More.",))).split(
        "\n"
    )
    assert first.startswith("2 of 8 GPUs are yours ")
    assert first.endswith("NVIDIA 580")
    assert columns(first) == WIDTH
    assert rest == ["More."]


def test_a_machine_that_does_not_fit_beside_the_answer_goes_under_it():
    lines = as_text(View("x" * 60, "y" * 30)).split("\n")
    assert [len(line.strip()) for line in lines] == [60, 30]


def test_notices_come_before_everything_and_notes_are_called_notes():
    lines = as_text(View("T", notices=("N",), lines=("L",), notes=("M",))).split("\n")
    assert lines == ["N", "T", "L", "Note: M"]


def test_columns_line_up_and_empty_ones_are_left_out():
    text = as_text(View("T", tables=(with_rows(("a", "", "1"), ("bbb", "", "22")),)))
    assert text.split("\n")[1:] == ["  a     1", "  bbb  22"]


def test_a_second_table_is_named():
    table = with_rows(("a", "b", "c"))
    assert as_text(View("T", tables=(table, table))).split("\n")[2] == "Rows:"


def test_a_last_cell_without_room_stands_under_its_row():
    table = with_rows(("a" * 50, "b" * 20, "many words that need a line of their own"))
    lines = as_text(View("T", tables=(table,))).split("\n")
    assert lines[2] == "      many words that need a line of their own"


def test_indices_stay_with_who_they_belong_to():
    text = "Others: " + " · ".join(f"{n}, {n + 1} somebody" for n in range(0, 40, 2))
    assert len(wrapped(text)) > 3
    assert not any(line.rstrip().endswith(",") for line in wrapped(text))


@pytest.mark.parametrize(("text", "wide"), [("abc", 3), ("日本", 4), ("é", 1), ("", 0)])
def test_columns_are_those_of_a_terminal(text, wide):
    assert columns(text) == wide


def test_leading_blanks_are_kept():
    assert wrapped("      → a command") == ["      → a command"]


@given(CELLS, CELLS, CELLS, st.lists(CELLS, max_size=3).map(tuple))
def test_no_line_is_wider_than_a_terminal(first, second, third, notes):
    table = with_rows((first[:40], second, third), ("1", "2", "3"))
    view = View(second, third, notes, (table,), notes, notes)
    wide = [line for line in as_text(view).split("\n") if columns(line) > WIDTH]
    assert all(" " not in line.strip() for line in wide), wide


def test_a_path_stays_whole_and_an_endless_word_does_not():
    path = "/srv/" + "long/" * 20 + "end"
    assert wrapped(f"found in {path} today") == ["found in", f"  {path}", "  today"]
    table = with_rows(("a", "b", path), ("c", "d", f"x {path}"))
    lines = as_text(View("T", tables=(table,))).split("\n")
    assert lines[1:] == ["  a  b", f"      {path}", "  c  d", "      x", f"      {path}"]
    assert all(len(line) <= WIDTH for line in wrapped("a" * 1000))


def test_every_line_of_a_text_is_wrapped_below_its_beginning():
    text = f"First {'a ' * 60}\n  0, 1  alice  {'b' * 90}  since 09:12\n\nlast"
    lines = wrapped_lines(text).split("\n")
    assert lines[1].startswith("  a a")
    assert lines[2:] == ["  0, 1  alice", f"    {'b' * 90}", "    since 09:12", "", "last"]


def test_a_table_that_needs_them_has_headings():
    table = Table("T", TABLE.columns, (("a", "bbb", "1"),), headed=True)
    assert as_text(View("T", tables=(table,))).split("\n")[1:] == ["  A  B    C", "  a  bbb  1"]


@given(st.text("ab ", max_size=300))
def test_wrapping_loses_no_word(text):
    assert "".join("".join(wrapped(text)).split()) == "".join(text.split())


def test_a_line_to_copy_is_never_broken():
    line = f"export CUDA_VISIBLE_DEVICES={'x' * 100} AND=more"
    shown = as_text(View("Title", code=(line,), lines=("A fact.",)))
    assert shown == f"Title\n  {line}\nA fact."
