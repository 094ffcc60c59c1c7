"""The logo says the amount of GPUs, as one well-formed drawing that needs no font."""

import struct
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from jupyter_gpu.core.logo import DARK, GLYPHS, GREEN, GREY, SIZE, WHITE, logo

KERNELSPECS = Path(__file__).parent.parent / "kernelspecs"
SVG = "{http://www.w3.org/2000/svg}"


def rectangles(drawing):
    return ET.fromstring(drawing).findall(f"{SVG}rect")


def strokes(drawing):
    return [path.get("d") for path in ET.fromstring(drawing).findall(f"{SVG}g/{SVG}path")]


@pytest.mark.parametrize("gpus", [0, 1, 2, 3, 8, 9, 10, 16, 128, 1024, "all"])
def test_the_drawing_writes_the_number_and_stays_inside_the_chip(gpus):
    drawing = logo(gpus)
    assert strokes(drawing) == [GLYPHS[sign][1] for sign in str(gpus)]
    group = ET.fromstring(drawing).find(f"{SVG}g")
    left, top = map(float, group.get("transform").split("(")[1].split(")")[0].split())
    assert 8 < left < SIZE / 2
    assert 8 < top < SIZE / 2


def test_a_sign_without_strokes_is_left_out():
    assert strokes(logo("1?")) == [GLYPHS["1"][1]]
    assert strokes(logo("?")) == []


def test_no_gpu_is_an_outline_and_not_told_by_colour_alone():
    outline = ET.fromstring(logo(0)).find(f"{SVG}rect")
    chip = ET.fromstring(logo(1)).find(f"{SVG}rect")
    assert outline.get("fill") == "none"
    assert chip.get("fill") not in ("none", None)


@pytest.mark.parametrize("share", ["1/4", "1/3", "1/2", "3/4", "3/8", "1/10", "1/27720", "99/100"])
def test_a_share_is_a_chip_that_is_filled_as_far_and_says_how_far(share):
    chip, level = rectangles(logo(share))
    part, whole = map(int, share.split("/"))
    low, high = float(chip.get("y")) + 2, float(chip.get("y")) + float(chip.get("height")) - 2
    height = float(level.get("height"))
    assert height == pytest.approx((high - low) * part / whole, abs=0.01)
    assert float(level.get("y")) + height == pytest.approx(high, abs=0.01)
    assert (chip.get("fill"), level.get("fill"), chip.get("stroke")) == (DARK, GREEN, GREEN)
    written = share if len(share) <= 5 else ""
    assert strokes(logo(share)) == [GLYPHS[sign][1] for sign in written]


@pytest.mark.parametrize(
    ("profile", "slices"), [("1g.18gb", "1g"), ("3g.71gb", "3g"), ("1c.4g.71gb", "4g")]
)
def test_a_mig_device_has_a_broken_edge_and_the_number_of_its_slices(profile, slices):
    _, edge = rectangles(logo(f"mig:{profile}"))
    assert edge.get("stroke-dasharray")
    assert strokes(logo(f"mig:{profile}")) == [GLYPHS[sign][1] for sign in slices]


@pytest.mark.parametrize("strange", ["1/0", "/", "5/4", "mig:", "a/b", "", "1/4/2", "²/³"])
def test_whatever_is_asked_for_there_is_a_drawing(strange):
    drawing = ET.fromstring(logo(strange))
    for rectangle in drawing.iter(f"{SVG}rect"):
        assert float(rectangle.get("y")) >= 8
        assert float(rectangle.get("height")) <= 48


def luminance(colour):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
def test_it_stands_out_on_light_and_dark_pages(page):
    chip = ET.fromstring(logo(2)).find(f"{SVG}rect").get("fill")
    assert contrast(GREY, page) >= 3
    assert contrast(chip, page) >= 3
    assert contrast(WHITE, chip) >= 4.5


def test_a_level_is_not_told_by_the_tint_alone():
    assert contrast(GREEN, DARK) >= 3
    assert contrast(WHITE, DARK) >= 4.5


@pytest.mark.parametrize(
    ("name", "gpus"), [("cpu", 0), ("quarter-gpu", "1/4"), ("1gpu", 1), ("2gpus", 2)]
)
def test_the_committed_logos_are_this_drawing(name, gpus):
    folder = KERNELSPECS / f"pytorch-{name}"
    assert (folder / "logo-svg.svg").read_text(encoding="utf-8") == logo(gpus)
    for size in (32, 64):
        header = (folder / f"logo-{size}x{size}.png").read_bytes()[:24]
        assert header.startswith(b"\x89PNG")
        assert struct.unpack(">II", header[16:24]) == (size, size)
