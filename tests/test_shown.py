from jupyter_gpu.core.view import View
from jupyter_gpu.faces.shown import Shown

VIEW = View("2 of 4 GPUs are yours", lines=("It is <so>.",))


def test_a_notebook_is_given_text_and_html_and_a_terminal_the_same_text():
    bundle = Shown(VIEW)._repr_mimebundle_(include=None, exclude=None)
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"] == repr(Shown(VIEW))
    assert bundle["text/plain"].startswith("2 of 4 GPUs are yours\n")
    assert "It is &lt;so&gt;." in bundle["text/html"]


def test_ipython_shows_both_forms():
    from IPython.core.formatters import DisplayFormatter

    data, _ = DisplayFormatter().format(Shown(VIEW))
    assert data == Shown(VIEW)._repr_mimebundle_()
