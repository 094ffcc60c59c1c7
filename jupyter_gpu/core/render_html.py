"""A view as HTML for a notebook: readable in light and dark themes, and by a screen reader.

Colours are JupyterLab's own variables, with the surrounding text's colour where there are none, and
say nothing that the words do not. Everything is escaped: names of notebooks, users and commands
come from other people.
"""

from __future__ import annotations

import html

from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.view import Column, Table, View

_MUTED = "color:var(--jp-ui-font-color2,currentColor)"
_RULE = "border-bottom:1px solid var(--jp-border-color2,currentColor)"
_CELL = "padding:2px 10px 2px 0"


def as_html(view: View) -> str:
    """Return the view as one ``div`` without scripts, style sheets or links."""
    machine = f' <span style="{_MUTED}">{_escaped(view.machine)}</span>' if view.machine else ""
    parts = [
        *(_paragraph(f"<strong>{_escaped(notice)}</strong>") for notice in view.notices),
        _paragraph(f"<strong>{_escaped(view.title)}</strong>{machine}"),
        *(_code(line) for line in view.code),
        *(_table(table) for table in view.tables),
        *([_checks(view.checks)] if view.checks else []),
        *([view.drawing] if view.drawing else []),
        *(_paragraph(_escaped(line)) for line in view.lines),
    ]
    if view.notes:
        items = "".join(f"<li>{_escaped(note)}</li>" for note in view.notes)
        parts.append(f'<ul aria-label="Notes" style="margin:4px 0">{items}</ul>')
    style = "color:var(--jp-ui-font-color1,currentColor);line-height:1.4"
    return f'<div class="jupyter-gpu" style="{style}">{"".join(parts)}</div>'


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)


def _paragraph(content: str) -> str:
    return f'<p style="margin:4px 0">{content}</p>'


def _code(line: str) -> str:
    style = "margin:4px 0 4px 1em;white-space:pre-wrap;overflow-wrap:anywhere"
    return f'<pre style="{style}">{_escaped(line)}</pre>'


def _table(table: Table) -> str:
    kept = [n for n, _ in enumerate(table.columns) if any(row[n] for row in table.rows)]
    headings = "".join(_cell("th", table.columns[n], table.columns[n].heading, "col") for n in kept)
    rows = "".join(_row(table, row, kept) for row in table.rows)
    caption = f'<caption style="text-align:left;{_MUTED}">{_escaped(table.caption)}</caption>'
    return (
        f'<table style="margin:4px 0;border-collapse:collapse;font-size:inherit">{caption}'
        f"<thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _row(table: Table, row: tuple[str, ...], kept: list[int]) -> str:
    first, *rest = kept
    cells = _cell("th", table.columns[first], row[first], "row")
    cells += "".join(_cell("td", table.columns[n], row[n]) for n in rest)
    return f"<tr>{cells}</tr>"


def _checks(checks: tuple[Check, ...]) -> str:
    """Return the findings as a table whose first column says in words how each stands."""
    columns = (Column("Status"), Column("Check"), Column("Found, and what to do"))
    headings = "".join(_cell("th", column, column.heading, "col") for column in columns)
    rows = "".join(_check(check, columns) for check in checks)
    return (
        '<table style="margin:4px 0;border-collapse:collapse;font-size:inherit">'
        f'<caption style="text-align:left;{_MUTED}">Checks</caption>'
        f"<thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _check(check: Check, columns: tuple[Column, ...]) -> str:
    status = check.status if check.status == "ok" else check.status.upper()
    fix = "" if check.fix is None else _escaped(check.fix)
    if fix and check.fix_is_command:
        fix = f"<code>{fix}</code>"
    found = _escaped(check.found) + (f"<br>→ {fix}" if fix else "")
    return (
        f"<tr>{_cell('td', columns[0], status)}{_cell('th', columns[1], check.name, 'row')}"
        f'<td style="text-align:left;{_CELL}">{found}</td></tr>'
    )


def _cell(tag: str, column: Column, text: str, scope: str | None = None) -> str:
    align = "right" if column.right else "left"
    attribute = "" if scope is None else f' scope="{scope}"'
    style = f"text-align:{align};{_CELL}" + (f";{_RULE}" if scope == "col" else "")
    if column.right or scope is not None:
        style += ";white-space:nowrap"
    return f'<{tag}{attribute} style="{style}">{_escaped(text)}</{tag}>'
