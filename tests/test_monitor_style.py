import re

import pytest
from support_monitor import moment, waiting

from jupyter_gpu.core import monitor_style
from jupyter_gpu.core.monitor_html import page, parts
from jupyter_gpu.core.monitor_style import COMPACT, FOLDED, GRID, OVERLAY, ROOT, STYLE
from jupyter_gpu.core.monitor_view import Choice

# Conventions of ipywidgets, which the live monitor is made of.
THEIRS = {"widget-button", "widget-checkbox", "widget-html", "widget-html-content", "widget-box", "widget-gridbox", "jupyter-widgets-disconnected"}
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")


def selectors():
    text = re.sub(r"@container[^{]*\{((?:[^{}]+\{[^{}]*\})+)\}", r"\1", STYLE[7:-8])
    return [one for found, _ in _RULE.findall(text) for one in found.split(",")]


def test_every_rule_is_below_the_root():
    found = selectors()
    assert len(found) > 30
    assert [one for one in found if not one.startswith(f".{ROOT}")] == []


def test_every_brace_is_closed():
    assert STYLE.count("{") == STYLE.count("}")
    assert STYLE.startswith("<style>")
    assert STYLE.endswith("</style>")


def test_it_fetches_nothing():
    assert "url(" not in STYLE
    assert "@import" not in STYLE
    assert "http" not in STYLE


def test_its_classes_are_those_of_the_markup_and_the_other_way_round():
    styled = set(re.findall(r"\.([a-z][\w-]*)", " ".join(selectors())))
    shown = moment(waiters=waiting(), problem="The processes cannot be read.")
    markup = ""
    for compact in (True, False):
        chosen = Choice((*(row.uuid for row in shown.overview.shown), "gone"), compact=compact)
        live = parts(shown, chosen)
        markup += page(shown, chosen) + live.state + live.now + "".join(live.cards) + live.rest
    used = {name for names in re.findall(r"class='([^']*)'", markup) for name in names.split()}
    assert styled - THEIRS - {OVERLAY, FOLDED} <= used
    assert used - styled == set()
    assert {ROOT, COMPACT, GRID} <= used


def test_the_numbers_let_clicks_through():
    assert f".{ROOT}:not(#_) .{OVERLAY}>.widget-html{{pointer-events:none}}" in STYLE


def luminance(colour):
    parts_ = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts_)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("ground", ["#ffffff", "#111111"])
@pytest.mark.parametrize("name", ["--g1", "--g2"])
def test_the_colours_stand_out_on_white_and_on_black(name, ground):
    colour = re.search(rf"{name}:(#[0-9a-f]{{6}})", STYLE)[1]
    light, dark = sorted((luminance(colour), luminance(ground)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_the_overlay_is_explained():
    assert "OVERLAY" in monitor_style.__doc__
