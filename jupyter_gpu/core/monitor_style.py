"""The style sheet of the monitor, live and saved. Pure.

Everything is below one class, ``ROOT``, so that nothing else in a notebook changes.

How the live monitor lies on the page: in an ``OVERLAY``, a grid of one cell, two children lie on
top of each other, the cards and the numbers. Both are a ``GRID`` with the same columns, whose items
have one fixed height; a card leaves the room empty in which the numbers of the same place appear.
So the numbers of all devices can be one widget, sent every second, and each card one of its own,
sent now and then, and nothing moves. The numbers let clicks through to the card below.

A saved page has the same cards with the numbers in them, laid over the same room.

The colours are JupyterLab's variables, with the surrounding text's colour where there are none. The
blue and the vermillion are two that colour-blind people tell apart, and both stand out on white and
on black by more than 3 to 1; the words say what they say.
"""

from __future__ import annotations

ROOT, COMPACT = "jgm", "gz"
OVERLAY, GRID = "go", "gg"
CARD_PIXELS, LINE_PIXELS = 218, 26

_RULES = """
.jgm{color:var(--jp-content-font-color1,inherit);font-family:var(--jp-ui-font-family,sans-serif);
font-size:13px;line-height:18px;max-width:100%;min-width:0;overflow:hidden;
--g1:#0072b2;--g2:#d55e00;--gr:var(--jp-border-color1,#8888)}
.jgm *{box-sizing:border-box}
.jgm .jupyter-widgets{margin:0;width:auto;height:auto;min-width:0;max-width:100%;padding:0;overflow:visible}
.jgm .widget-html-content{line-height:18px;min-width:0;width:100%}
.jgm p,.jgm ul{margin:0;padding:0;list-style:none}
.jgm .go{display:grid;grid-template:auto/minmax(0,1fr);overflow:hidden}
.jgm .go>*{grid-area:1/1}
.jgm .go>.widget-html{pointer-events:none}
.jgm .gg{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(264px,100%),1fr));gap:8px}
.jgm .gk,.jgm .gi{height:218px;padding:7px 10px;border:1px solid transparent;min-width:0;overflow:hidden}
.jgm .gk{position:relative;border-color:var(--gr);border-radius:3px}
.jgm .gk>.gi{position:absolute;inset:-1px;border:1px solid transparent}
.jgm .gi{padding-top:29px}
.jgm p,.jgm li{overflow:hidden;white-space:nowrap;text-overflow:ellipsis}
.jgm .gh+*{margin-top:62px}
.jgm .gi+*{margin-top:62px}
.jgm .gb{display:block;height:12px;margin:3px 0 4px;border:1px solid var(--gr);position:relative;overflow:hidden;print-color-adjust:exact;-webkit-print-color-adjust:exact}
.jgm .gb::before,.jgm .gb::after{content:'';position:absolute;top:0;bottom:0;left:0;width:calc(var(--m)*1%);background:var(--g1)}
.jgm .gb::after{left:calc(var(--m)*1%);width:calc(var(--o)*1%);background:repeating-linear-gradient(135deg,var(--g2) 0 2px,transparent 2px 5px);border-right:1px solid var(--g2)}
.jgm .gn{display:flex;gap:12px}
.jgm .gc{display:flex;gap:12px;font-size:11px;line-height:16px}
.jgm .gc div{flex:1;min-width:0}
.jgm svg{display:block;width:100%;height:28px;border-bottom:1px solid var(--gr);overflow:visible}
.jgm path{fill:none;stroke:currentColor;stroke-width:1.5;vector-effect:non-scaling-stroke;stroke-linecap:round}
.jgm .gl{stroke:var(--g1)}
.jgm .ga{fill:currentColor;fill-opacity:.25;stroke-width:1}
.jgm ul{font-size:11px;line-height:16px;margin-top:4px}
.jgm li{display:flex;gap:8px}
.jgm li span{flex:1;min-width:0;overflow:hidden;text-overflow:ellipsis}
.jgm .gx{white-space:normal;font-size:12px;line-height:16px;max-height:64px}
.jgm .gs p,.jgm .gs li{white-space:normal}
.jgm .gs ul{font-size:13px;line-height:18px}
.jgm table{border-collapse:collapse;font-size:12px;margin:4px 0;width:auto;max-width:100%}
.jgm th,.jgm td{padding:2px 10px 2px 0;text-align:left;overflow-wrap:anywhere;vertical-align:top;font-weight:inherit}
.jgm .gz .gk,.jgm.gz .gk,.jgm.gz .gi{height:26px}
"""


def style() -> str:
    """Return the ``style`` element that every monitor brings along."""
    return f"<style>{_RULES.strip()}</style>"
