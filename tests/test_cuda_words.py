import pytest

from jupyter_gpu.core.cuda_words import cuinit_fix, cuinit_words


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (100, "no GPU"),
        (101, "names one twice"),
        (34, "stub"),
        (803, "different versions"),
        (805, "MPS control daemon"),
        (999, "unknown error"),
    ],
)
def test_a_code_is_said_in_words_with_what_mends_it(code, words):
    assert cuinit_words(code).startswith(f"cuInit {code}: ")
    assert words in cuinit_words(code)
    assert cuinit_fix(code)


def test_a_code_without_words_is_still_named():
    assert cuinit_words(12345) == "cuInit 12345"
    assert cuinit_fix(12345)
