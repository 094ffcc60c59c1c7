"""One value of CUDA_VISIBLE_DEVICES in a fresh process: what we say of it, and what CUDA does.

The value comes on standard input as JSON, null for "not set"; the answer is one JSON object.
"""

from __future__ import annotations

import json
import os
import sys

from in_kernel import driver_uuids


def main() -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    settings = Config()
    settings.HistoryManager.hist_file = ":memory:"
    shell = InteractiveShell.instance(config=settings)
    shell.run_line_magic("load_ext", "jupyter_gpu")
    value = json.load(sys.stdin)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if value is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = value

    before = shell.run_line_magic("gpu", "--json")
    code, uuids = driver_uuids()
    after = shell.run_line_magic("gpu", "--json")
    print(json.dumps({"before": before, "cuinit": code, "uuids": uuids, "after": after}))


if __name__ == "__main__":
    main()
