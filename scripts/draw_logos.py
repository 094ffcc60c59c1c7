"""Draws the logos of the kernelspecs in ``kernelspecs/``, for whoever changes the drawing.

The SVG comes from ``jupyter_gpu.core.logo``, which also draws the logos of ``jupyter gpu
install``; the PNGs for older front ends are rendered from it by ``rsvg-convert`` (Debian:
librsvg2-bin). Both are committed, so nobody needs this script to build or to install.

Run from the top of the tree: ``python scripts/draw_logos.py``.
"""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from jupyter_gpu.core.logo import logo

KERNELSPECS = Path(__file__).resolve().parent.parent / "kernelspecs"
SPECS = (
    ("pytorch-cpu", 0),
    ("pytorch-quarter-gpu", "1/4"),
    ("pytorch-1gpu", 1),
    ("pytorch-2gpus", 2),
)


def main() -> None:
    """Write the three logos of each kernelspec."""
    renderer = shutil.which("rsvg-convert")
    if renderer is None:
        raise SystemExit("rsvg-convert is not installed (Debian: apt install librsvg2-bin)")
    for name, gpus in SPECS:
        folder = KERNELSPECS / name
        folder.mkdir(parents=True, exist_ok=True)
        drawing = folder / "logo-svg.svg"
        drawing.write_text(logo(gpus), encoding="utf-8")
        for size in ("32", "64"):
            picture = folder / f"logo-{size}x{size}.png"
            subprocess.run([renderer, "-w", size, "-h", size, "-o", picture, drawing], check=True)


if __name__ == "__main__":
    main()
