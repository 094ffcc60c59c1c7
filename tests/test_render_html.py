from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.render_html import as_html
from jupyter_gpu.core.view import Column, Table, View

HOSTILE = """<script>alert(1)</script><img src=x onerror=y>"'&</td></table>"""
COLUMNS = (Column("A"), Column("B", right=True))


class Reader(HTMLParser):
    """Reads HTML as a browser would: the tags with attributes, and the text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self.open = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def view(text):
    table = Table(text, COLUMNS, ((text, text), ("1", "2")))
    return View(text, text, (text,), (table,), (text,), (text,))


@given(st.text(min_size=1) | st.just(HOSTILE))
def test_whatever_a_name_is_it_is_only_text(text):
    read, plain = Reader(as_html(view(text))), Reader(as_html(view("x")))
    assert read.tags == plain.tags
    assert "<script" not in as_html(view(text))


def test_the_hostile_name_is_shown_as_it_is():
    assert HOSTILE in "".join(Reader(as_html(view(HOSTILE))).text)


def test_a_table_says_what_its_columns_and_rows_are():
    tags = Reader(as_html(view("x"))).tags
    scopes = [attributes.get("scope") for tag, attributes in tags if tag == "th"]
    assert scopes == ["col", "col", "row", "row"]
    assert "caption" in [tag for tag, _ in tags]


def test_colours_come_from_the_theme_and_nothing_is_loaded():
    html = as_html(view("x"))
    for _, attributes in Reader(html).tags:
        for declaration in (attributes.get("style") or "").split(";"):
            if "color" in declaration:
                assert "var(--jp-" in declaration
                assert "currentColor" in declaration
    assert "<script" not in html
    assert "<style" not in html
    assert "http" not in html
    assert "#" not in html


def test_a_column_that_is_empty_everywhere_is_left_out():
    table = Table("T", COLUMNS, (("a", ""), ("b", "")))
    html = as_html(View("x", tables=(table,)))
    assert ">A<" in html
    assert ">B<" not in html


def test_a_line_to_copy_stands_by_itself_and_is_escaped():
    shown = as_html(View("Title", code=("export A='<b>'",)))
    assert ">export A=&#x27;&lt;b&gt;&#x27;</pre>" in shown
