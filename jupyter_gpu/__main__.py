"""``python -m jupyter_gpu``: the command, where its script is not on the PATH."""

from __future__ import annotations

import sys

from jupyter_gpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
