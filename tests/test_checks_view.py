import pytest

from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.checks_view import checks_view, summary
from jupyter_gpu.core.render_html import as_html
from jupyter_gpu.core.render_text import as_text

OK = Check("driver", "ok", "NVIDIA 580.159.04")
WARN = Check("CUDA_DEVICE_ORDER", "warn", "is not set & the GPUs differ", "set it <first>")
FAIL = Check("torch", "fail", "word " * 30, "%pip install " + "torch " * 20)


@pytest.mark.parametrize(
    ("checks", "words"),
    [
        ((OK,), "1 check: all is well"),
        ((OK, WARN), "2 checks: 0 failed, 1 with a warning"),
        ((OK, WARN, FAIL), "3 checks: 1 failed, 1 with a warning"),
        ((), "0 checks: all is well"),
    ],
)
def test_the_sum_comes_first(checks, words):
    assert summary(checks) == words
    assert as_text(checks_view(checks)).splitlines()[0] == words


def test_in_text_each_check_is_a_line_with_what_mends_it_under_it():
    lines = as_text(checks_view((OK, WARN))).splitlines()
    assert lines[1:] == [
        "ok    driver: NVIDIA 580.159.04",
        "warn  CUDA_DEVICE_ORDER: is not set & the GPUs differ",
        "      → set it <first>",
    ]


def test_a_command_to_copy_stays_in_one_piece_and_sentences_wrap():
    *lines, command = as_text(checks_view((FAIL,))).splitlines()
    assert command == f"      → {FAIL.fix}"
    assert all(len(line) <= 80 for line in lines)


def test_in_html_the_status_is_a_word_and_everything_is_escaped():
    html = as_html(checks_view((OK, WARN, FAIL)))
    for words in (">ok<", ">WARN<", ">FAIL<", "is not set &amp; the GPUs differ", "&lt;first&gt;"):
        assert words in html
    assert f"<code>{FAIL.fix}</code>" in html
    assert html.count('scope="row"') == 3


def test_the_machine_may_stand_beside_the_sum():
    assert as_text(checks_view((OK,), "simulated")).splitlines()[0].endswith("simulated")
