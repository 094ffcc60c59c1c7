"""The style sheet of the monitor, live and saved. Pure.

Everything is below one class, ``ROOT``, so that nothing else in a notebook changes.

How the live monitor lies on the page: in an ``OVERLAY``, a grid of one cell, two children lie on
top of each other, the cards and the numbers. Both are a ``GRID`` with the same columns, whose items
have one fixed height; a card leaves the room empty in which the numbers of the same place appear.
So the numbers of all devices can be one widget, sent every second, and each card one of its own,
sent now and then, and nothing moves. The numbers let clicks through to the card below.

A saved page has the same cards with the numbers in them, laid over the same room. Compact, a device
is one line: its name on the left, the room for its numbers on the right, or below where there is
too little width for both.

The colours are JupyterLab's variables, with the surrounding text's colour where there are none. The
blue and the vermillion are two that colour-blind people tell apart, and both stand out on white and
on black by more than 3 to 1; the words say what they say.
"""

from __future__ import annotations

import re

ROOT, COMPACT = "jgm", "gz"
OVERLAY, GRID, FOLDED = "go", "gg", "gq"

_RULES = """
.jgm.jgm{
 color:var(--jp-content-font-color1,inherit);font:13px/18px var(--jp-ui-font-family,sans-serif);
 width:100%;min-width:0;overflow:clip;overflow-clip-margin:4px;container-type:inline-size;
 --g1:#0072b2;--g2:#d55e00;--g3:var(--jp-border-color1,#8888);
 --g4:var(--jp-ui-font-color2,inherit)
}
.jgm *{box-sizing:border-box}
.jgm .widget-html,.jgm .widget-box,.jgm .widget-gridbox{
 margin:0;padding:0;width:auto;height:auto;min-width:0;max-width:100%;overflow:visible
}
.jgm .jupyter-widgets-disconnected::before,.jgm.jupyter-widgets-disconnected::before{content:none}
.jgm.jupyter-widgets-disconnected .gt,.jgm.jupyter-widgets-disconnected .widget-button{display:none}
.jgm.jupyter-widgets-disconnected .gs::after{
 content:'The kernel that drew this has ended, so it does not move any more. Run the cell again.'
}
.jgm .widget-html>.widget-html-content{font:inherit;line-height:18px;min-width:0;width:100%}
.jgm p,.jgm ul,.jgm li{margin:0;padding:0;list-style:none;font:inherit}
.jgm .gs p,.jgm .gs li,.jgm .gr p{overflow-wrap:anywhere;margin:0 0 2px}
.jgm .gs span,.jgm .gt{color:var(--g4)}
.jgm .gs ul{margin:4px 0;padding-left:8px;border-left:3px solid var(--g2)}
.jgm .gs{margin-bottom:6px}
.jgm .go{display:grid;grid-template:auto/minmax(0,1fr)}
.jgm .go>*{grid-area:1/1}
.jgm .go>.widget-html{pointer-events:none}
.jgm .gg{
 display:grid;grid-template-columns:repeat(auto-fill,minmax(min(288px,100%),1fr));gap:8px
}
.jgm .gk,.jgm .gi{
 position:relative;height:218px;padding:7px 10px;border:1px solid transparent;
 min-width:0;overflow:hidden
}
.jgm .gk{border-color:var(--g3);border-radius:3px;break-inside:avoid}
.jgm .gi{padding-top:25px}
.jgm .gk>.gi{position:absolute;inset:-1px}
.jgm .gk p,.jgm .gi p,.jgm .gc div{overflow:hidden;white-space:nowrap;text-overflow:ellipsis}
.jgm .gh span{color:var(--g4)}
.jgm .gf{position:absolute;top:90px;left:10px;right:10px}
.jgm .gb{
 display:block;position:relative;height:14px;margin:3px 0 5px;border:1px solid var(--g3);
 overflow:hidden;print-color-adjust:exact;-webkit-print-color-adjust:exact;forced-color-adjust:none
}
.jgm .gb::before,.jgm .gb::after{
 content:'';position:absolute;top:0;bottom:0;left:0;width:calc(var(--m)*1%);background:var(--g1)
}
.jgm .gb::after{
 left:calc(var(--m)*1%);width:calc(var(--o)*1%);
 background:repeating-linear-gradient(135deg,var(--g2) 0 2px,transparent 2px 5px)
}
.jgm .gn{display:flex;gap:14px}
.jgm i{font-style:normal}
.jgm .gc{display:flex;gap:12px;font-size:11px;line-height:16px}
.jgm .gc div{flex:1;min-width:0;color:var(--g4)}
.jgm svg{
 display:block;width:100%;height:32px;padding:1px 0;
 border:solid var(--g3);border-width:1px 0;border-top-style:dotted
}
.jgm path{
 fill:none;stroke:var(--g1);stroke-width:1.5;vector-effect:non-scaling-stroke;
 stroke-linecap:round;stroke-linejoin:round
}
.jgm .ga{fill:var(--g1);fill-opacity:.25;stroke-width:1}
.jgm .gk ul{margin:4px 0 0;padding:0;font-size:11px;line-height:16px}
.jgm .gk li{display:flex;gap:8px;white-space:nowrap}
.jgm .gk li span{flex:1;min-width:0;overflow:hidden;text-overflow:ellipsis}
.jgm .gk .gx{margin-top:4px;max-height:64px;line-height:16px;white-space:normal}
.jgm .gk .gx::before,.jgm .gi .gx::before{
 content:'';border-left:3px solid var(--g2);margin-right:6px
}
.jgm table{border-collapse:collapse;margin:4px 0;font-size:12px;line-height:16px;max-width:100%}
.jgm tr{background:none;border:0}
.jgm th,.jgm td{
 padding:2px 12px 2px 0;border:0;text-align:left;vertical-align:top;max-width:none;
 font-weight:inherit;overflow-wrap:anywhere
}
.jgm thead th{color:var(--g4);border-bottom:1px solid var(--g3);overflow-wrap:normal}
.jgm .gr td:nth-child(3),.jgm .gr td:nth-child(4){white-space:nowrap}
.jgm .widget-checkbox{width:auto;margin:6px 0 0}
.jgm .gq{display:none}
.jgm .widget-checkbox:has(input:checked)+.gq{display:block}
.jgm summary{cursor:pointer;margin-top:6px}
.jgm.gz .gg{grid-template-columns:minmax(0,1fr);gap:0}
.jgm.gz .gk,.jgm.gz .gi{height:26px;padding:3px 0}
.jgm.gz .gk{border-width:0 0 1px;border-radius:0}
.jgm.gz .gi{
 display:grid;grid-template-columns:minmax(24px,1fr) 262px 164px;gap:10px;padding-left:36%;
 border-width:0 0 1px
}
.jgm.gz .gk>.gi{inset:0 0 -1px}
.jgm.gz .gh{max-width:calc(36% - 10px)}
.jgm.gz .gb{height:12px}
.jgm.gz .gn{display:grid;grid-template-columns:70px 40px 42px;gap:6px;text-align:right}
.jgm.gz .gi>.gx{grid-column:1/-1}
@container (max-width:740px){
 .jgm.gz .gk,.jgm.gz .gi{height:46px}
 .jgm.gz .gi{padding:22px 0 4px}
 .jgm.gz .gh{max-width:100%}
}
@container (max-width:480px){
 .jgm .gt{min-height:36px}
 .jgm.gz .gi p{font-size:12px}
 .jgm.gz .gi{grid-template-columns:minmax(0,1fr) 242px 74px;gap:8px}
 .jgm.gz .gn{display:block}
 .jgm.gz .gn i+i{display:none}
}
"""
# Pages have rules of their own for lists and tables: not being what bears an id outweighs them.
_HEAVIER = re.sub(r"(\.jgm(?:\.[a-z-]+)*) ", r"\1:not(#_) ", _RULES)
STYLE = f"<style>{''.join(line.strip() for line in _HEAVIER.splitlines())}</style>"
