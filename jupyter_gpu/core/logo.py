"""The logo of a kernelspec: a chip with the number of GPUs on it, or filled as far as its share.

A launcher shows several kernelspecs of ours side by side; the logo is what the eye finds first.
The numerals are strokes of our own, so that they look alike wherever no font is to be had, and
stay legible at 32 pixels on a light and on a dark page.
"""

from __future__ import annotations

import re

SIZE = 64
FACE, FACE_INSIDE = 38.0, 34.0  # the longest side that the writing may take on a chip, an outline
HEIGHT, GAP, STROKE = 32.0, 8.0, 6.0
PINS = (20, 32, 44)
GREEN, WHITE = "#1f7a4d", "#ffffff"
DARK = "#0f1a14"  # what a share leaves empty: at least 3:1 against the green, whatever the page
GREY = "#7d8590"  # at least 3:1 against white and against a dark theme's #111111

# One stroke path for each sign, in a box 32 high, with the box's width.
GLYPHS = {
    "0": (20.0, "M10 2C4 2 2 8 2 16S4 30 10 30 18 24 18 16 16 2 10 2Z"),
    "1": (13.0, "M2 9L10 2V30"),
    "2": (20.0, "M3 9C3 4 6 2 10 2C15 2 18 5 18 10C18 16 8 22 3 30H18"),
    "3": (20.0, "M3 5C5 3 7 2 10 2A6 6.5 0 0 1 9 15A8 7.5 0 0 1 10 30C7 30 4 29 2 27"),
    "4": (20.0, "M14 30V2L2 21H18"),
    "5": (20.0, "M17 2H5L4 14C6 13 8 12 10 12C15 12 18 16 18 21S15 30 10 30C7 30 4 29 2 27"),
    "6": (20.0, "M16 3C8 5 2 12 2 20C2 26 5 30 10 30S18 26 18 21 15 13 10 13 2 17 2 21"),
    "7": (20.0, "M2 2H18L8 30"),
    "8": (20.0, "M10 15A7 6.5 0 1 1 10.1 15A8 7.5 0 1 1 10 15Z"),
    "9": (20.0, "M4 29C12 27 18 20 18 12C18 6 15 2 10 2S2 6 2 11 5 19 10 19 18 15 18 11"),
    "/": (16.0, "M2 30L14 2"),
    "a": (19.0, "M17 12V30M17 21C17 15 14 12 10 12S2 15 2 21 6 30 10 30 17 27 17 21"),
    "g": (19.0, "M17 2V23C17 28 14 30 10 30 7 30 5 29 3 27M10 2A7 9 0 0 0 10 20 7 9 0 0 0 10 2Z"),
    "l": (4.0, "M2 2V30"),
}

_HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" '
    f'width="{SIZE}" height="{SIZE}">'
)
_TOP, _BOTTOM = 12.0, 52.0  # what an outline leaves free, in both directions
_LONGEST = 5  # signs that can still be read together
_SHARE = re.compile(r"([0-9]{1,9})/([1-9][0-9]{0,8})")
_SLICES = re.compile(r"\b([0-9]+g)\b")


def logo(gpus: int | str) -> str:
    """Draw the logo of a kernelspec as SVG.

    Parameters
    ----------
    gpus
        What the request says: a number, ``"all"``, a share or a MIG profile. Whole GPUs are a
        filled chip, no GPU is an empty outline, a share is a chip that is filled as far, and a
        MIG device one with a broken edge and the number of its slices.

    Returns
    -------
    str
        One SVG document, 64 by 64, the same text for the same request.
    """
    sign = str(gpus)
    share, slices = _SHARE.fullmatch(sign), _SLICES.search(sign)
    body: tuple[str, ...]
    if share is not None:
        sign = sign if len(sign) <= _LONGEST else ""
        level = _level(min(int(share[1]) / int(share[2]), 1.0))
        body = (_outline(GREEN, inside=DARK), level, _writing(sign, WHITE, FACE_INSIDE))
    elif slices is not None:
        edge = _outline(GREEN, dashes="9 5")
        body = (_chip(DARK), edge, _writing(slices[1], WHITE, FACE_INSIDE))
    elif sign == "0":
        body = (_outline(GREY), _writing(sign, GREY))
    else:
        body = (_chip(GREEN), _writing(sign, WHITE))
    return "\n".join((_HEAD, _pins(), *body, "</svg>\n"))


def _pins() -> str:
    """Draw the chip's pins, three on each side."""
    path = "".join(f"M{at} 1V8M{at} 56V63M1 {at}H8M56 {at}H63" for at in PINS)
    return f'<path d="{path}" stroke="{GREY}" stroke-width="5"/>'


def _chip(colour: str) -> str:
    return f'<rect x="8" y="8" width="48" height="48" rx="8" fill="{colour}"/>'


def _outline(colour: str, *, inside: str = "none", dashes: str | None = None) -> str:
    broken = "" if dashes is None else f' stroke-dasharray="{dashes}"'
    return (
        f'<rect x="10" y="10" width="44" height="44" rx="8" fill="{inside}" stroke="{colour}" '
        f'stroke-width="4"{broken}/>'
    )


def _level(share: float) -> str:
    """Fill an outlined chip from below as far as a share."""
    height = share * (_BOTTOM - _TOP)
    return (
        f'<rect x="{_TOP:g}" y="{_BOTTOM - height:.2f}" width="{_BOTTOM - _TOP:g}" '
        f'height="{height:.2f}" fill="{GREEN}"/>'
    )


def _writing(sign: str, colour: str, face: float = FACE) -> str:
    """Place the strokes of a sign in the middle of the chip, as large as fits.

    A character that has no strokes here is left out: a chip without writing is still a chip.
    """
    glyphs = [GLYPHS[character] for character in sign if character in GLYPHS]
    width = sum(glyph_width + GAP for glyph_width, _ in glyphs) - GAP
    scale = face / max(width, HEIGHT * 1.15)
    stroke = STROKE * min(1.0, scale / 0.8)  # thinner where three signs share the chip
    left, top = (SIZE - width * scale) / 2, (SIZE - HEIGHT * scale) / 2
    group = (
        f'<g transform="translate({left:.2f} {top:.2f}) scale({scale:.3f})" fill="none" '
        f'stroke="{colour}" stroke-width="{stroke / scale:.2f}" stroke-linecap="round" '
        f'stroke-linejoin="round">'
    )
    paths, offset = [], 0.0
    for glyph_width, path in glyphs:
        paths.append(f'<path transform="translate({offset:g} 0)" d="{path}"/>')
        offset += glyph_width + GAP
    return "\n".join((group, *paths, "</g>"))
