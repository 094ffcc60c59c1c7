import pytest

from jupyter_gpu.core.history import Frozen, Imported, cause_words, cell_words, import_words


@pytest.mark.parametrize(
    ("frozen", "words"),
    [
        (Frozen(2), "cell [2]"),
        (Frozen(2, call="torch.cuda.init"), "cell [2] (torch.cuda.init)"),
        (Frozen(2, chain=("kornia",)), "cell [2] (import kornia)"),
        (Frozen(2, chain=("a", "b", "c.d")), "cell [2] (import a, which imports c.d)"),
        (Frozen(2, chain=("a", "b", "a")), "cell [2] (import a)"),
        (Frozen(None), "code outside the numbered cells"),
        (Frozen(2, "after"), "a thread or a callback after cell [2]"),
        (Frozen(2, "after", ("a",), "x"), "a thread or a callback after cell [2]"),
        (Frozen(None, "before"), "something before jupyter_gpu watched its cells"),
    ],
)
def test_what_initialised_cuda_is_the_subject_of_a_sentence(frozen, words):
    assert cause_words(frozen) == words


@pytest.mark.parametrize(
    ("chain", "by_import"), [((), None), (("a",), "a"), (("a", "b", "c"), "c")]
)
def test_the_innermost_import_is_the_one_whose_own_code_did_it(chain, by_import):
    assert Frozen(1, chain=chain).by_import == by_import


def test_cells_and_imports_are_told_in_the_same_words_everywhere():
    assert cell_words(4) == "cell [4]"
    assert cell_words(None) == "code outside the numbered cells"
    assert import_words(Imported("torch", "torch", None, 4)) == "in cell [4]"
    outside = Imported("torch", "torch", None, None)
    assert import_words(outside) == "in code outside the numbered cells"
    before = Imported("torch", "torch", None, None, when="before")
    assert import_words(before) == "before jupyter_gpu watched its cells"
