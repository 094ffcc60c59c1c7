"""The picture of the timeline: every kind, in one step, without touching the person's matplotlib."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from datetime import datetime, timezone

import matplotlib as mpl
import pytest

from jupyter_gpu.adapters.timeline import (
    KINDS,
    PlotMissingError,
    TimelineError,
    TimelineFileError,
    save_timeline,
)
from jupyter_gpu.core.errors import GPUError

GIB = 2**30
BEGIN = 1_764_580_000
SIGNATURES = {
    "svg": b"<?xml",
    "png": b"\x89PNG",
    "pdf": b"%PDF",
    "eps": b"%!PS",
    "ps": b"%!PS",
    "jpg": b"\xff\xd8",
    "jpeg": b"\xff\xd8",
    "tif": b"II*",
    "tiff": b"II*",
    "webp": b"RIFF",
}
SVG = "{http://www.w3.org/2000/svg}"


def iso(seconds):
    return datetime.fromtimestamp(BEGIN + seconds, timezone.utc).isoformat()


def history(devices=2, seconds=60, without=()):
    return [
        {
            "time": iso(at),
            "cell": None,
            "ordinal": ordinal,
            "index": ordinal + 3,
            "uuid": f"GPU-{ordinal}",
            "memory_used_bytes": (at % 40 + 10) * GIB,
            "memory_here_bytes": (at % 40) * GIB,
            "utilization_percent": at % 100,
            "power_watts": 300.0,
            "temperature_celsius": 50,
        }
        for at in range(seconds)
        if at not in without
        for ordinal in range(devices)
    ]


def cells(count=3, each=15):
    return [
        {"cell": number + 1, "began": iso(number * each + 2), "ended": iso((number + 1) * each)}
        for number in range(count)
    ]


def texts(path):
    return [element.text for element in ET.parse(path).iter(f"{SVG}text")]


def lines_of_curve(path, colour):
    """The separate pieces of the curves in a colour: each begins with a move."""
    found = [
        element.get("d").count("M")
        for element in ET.parse(path).iter(f"{SVG}path")
        if f"stroke: {colour}" in (element.get("style") or "") and element.get("d").count("L") > 5
    ]
    return max(found)


@pytest.mark.parametrize("kind", KINDS)
def test_the_suffix_says_the_kind_of_picture(tmp_path, kind):
    target = save_timeline(history(1, 20), cells(1), tmp_path / f"run.{kind.upper()}")
    assert target.read_bytes().startswith(SIGNATURES[kind])
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_an_svg_names_devices_and_cells_in_text_that_can_be_searched(tmp_path):
    target = save_timeline(history(), cells(), tmp_path / "run.svg")
    said = texts(target)
    for expected in ("cuda:0 = physical 3", "cuda:1 = physical 4", "[1]", "[3]", "GiB", "%"):
        assert expected in said
    assert any("local time" in text for text in said)
    assert "memory of this kernel" in said


def test_an_svg_is_a_picture_with_a_title_and_its_content_in_words(tmp_path):
    root = ET.parse(save_timeline(history(), cells(), tmp_path / "run.svg")).getroot()
    assert root.get("role") == "img"
    assert root.get("aria-label").startswith("GPU timeline; 3 cells ran meanwhile. cuda:0 =")
    assert root.find(f"{SVG}title").text == "GPU timeline"


def test_a_gap_in_the_watching_stays_a_gap(tmp_path):
    whole = save_timeline(history(1), [], tmp_path / "whole.svg")
    torn = save_timeline(history(1, without=range(20, 40)), [], tmp_path / "torn.svg")
    assert lines_of_curve(whole, "#b84700") == 1
    assert lines_of_curve(torn, "#b84700") == 2


def test_a_single_look_is_a_point(tmp_path):
    target = save_timeline(history(1, 1), [], tmp_path / "run.svg")
    assert any("use" in element.tag for element in ET.parse(target).iter())


def test_a_cell_that_runs_and_one_without_a_number_are_there(tmp_path):
    rows = [
        {"cell": None, "began": iso(2), "ended": iso(20)},
        {"cell": 7, "began": iso(25), "ended": None},
    ]
    said = texts(save_timeline(history(), rows, tmp_path / "run.svg"))
    assert {"[ ]", "[7]"} <= set(said)


def test_many_cells_on_many_devices_say_which_have_no_label(tmp_path):
    target = save_timeline(history(16, 600), cells(200, 3), tmp_path / "run.svg")
    said = texts(target)
    labels = [text for text in said if re.fullmatch(r"\[\d+\]", text or "")]
    assert 20 < len(labels) < 200
    assert any(f"· {200 - len(labels)} short cells without a label" in text for text in said)
    assert "cuda:15 = physical 18" in said


def test_a_day_and_a_night_name_the_days(tmp_path):
    rows = [{**row, "time": iso(at * 1800)} for at, row in enumerate(history(1, 90))]
    said = texts(save_timeline(rows, [], tmp_path / "run.svg"))
    assert any(re.search(r"\d{4}-\d\d-\d\d to \d{4}-\d\d-\d\d, local time", text) for text in said)


def test_nothing_known_of_a_device_is_drawn_as_such(tmp_path):
    unknown = dict.fromkeys(
        ("memory_used_bytes", "memory_here_bytes", "utilization_percent", "ordinal", "index")
    )
    rows = [{**row, **unknown} for row in history(1)]
    said = texts(save_timeline(rows, [], tmp_path / "run.svg"))
    assert "memory unknown, this kernel's part unknown; load unknown" in said


def test_the_persons_style_is_neither_used_nor_changed(tmp_path):
    plain = save_timeline(history(1), cells(), tmp_path / "plain.svg").read_bytes()
    with mpl.rc_context({"axes.facecolor": "black", "font.size": 30, "svg.fonttype": "path"}):
        before = dict(mpl.rcParams)
        styled = save_timeline(history(1), cells(), tmp_path / "styled.svg").read_bytes()
        assert dict(mpl.rcParams) == before
    assert styled == plain


def test_the_persons_backend_is_not_asked_and_pyplot_not_loaded(tmp_path):
    code = (
        "import sys; from jupyter_gpu.adapters.timeline import save_timeline\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"save_timeline({history(1, 5)!r}, [], {str(tmp_path / 'run.png')!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    environment = {**os.environ, "MPLBACKEND": "module://there_is_no_such_module"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert (tmp_path / "run.png").exists()


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotMissingError, match=re.escape('pip install "jupyter-gpu[plot]"')):
        save_timeline(history(1), [], tmp_path / "run.svg")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["run", "run.txt", "run.gif", ".svg"])
def test_a_kind_that_is_no_picture_is_refused_in_one_line(tmp_path, name):
    with pytest.raises(TimelineError) as refused:
        save_timeline(history(1), [], tmp_path / name)
    assert str(refused.value) == (
        f"{name!r} names no kind of picture: end it with .svg, .png or .pdf."
    )
    assert isinstance(refused.value, ValueError)


def test_without_a_history_there_is_nothing_to_draw(tmp_path):
    with pytest.raises(TimelineError, match="nothing to draw yet"):
        save_timeline([], cells(), tmp_path / "run.svg")


def test_a_folder_that_does_not_exist_is_told_in_one_line(tmp_path):
    target = tmp_path / "none" / "run.svg"
    with pytest.raises(TimelineFileError) as refused:
        save_timeline(history(1), [], target)
    assert str(refused.value) == f"{target} cannot be written: No such file or directory."
    assert isinstance(refused.value, (GPUError, OSError))


def test_a_folder_in_the_files_place_stays_and_no_part_is_left(tmp_path):
    (tmp_path / "run.svg").mkdir()
    with pytest.raises(TimelineFileError, match="cannot be written: Is a directory"):
        save_timeline(history(1), [], tmp_path / "run.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["run.svg"]


def test_a_file_that_a_link_names_is_replaced_and_the_link_kept(tmp_path):
    (tmp_path / "real.svg").write_text("old", encoding="utf-8")
    (tmp_path / "run.svg").symlink_to("real.svg")
    save_timeline(history(1, 5), [], str(tmp_path / "run.svg"))
    assert (tmp_path / "run.svg").is_symlink()
    assert (tmp_path / "real.svg").read_bytes().startswith(b"<?xml")


def test_a_new_picture_may_be_read_by_whom_the_umask_allows(tmp_path):
    before = os.umask(0o022)
    try:
        target = save_timeline(history(1, 5), [], tmp_path / "run.png")
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == 0o644
