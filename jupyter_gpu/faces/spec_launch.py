"""What a kernelspec starts: the environments of the start, and the program, as jupyter_client does.

The provisioner decides before the command line is made, and has to know the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from string import Template
from typing import Any

from jupyter_gpu.core.kernelspec import config_of
from jupyter_gpu.core.leases import Origin


def environments(
    kernel_spec: Any,  # noqa: ANN401 - jupyter_client is untyped here
    launch_env: Mapping[str, str] | None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment that a start begins with, and what the kernelspec's ``env`` adds.

    ``${NAME}`` in the kernelspec is the launch environment's.
    """
    base = dict(os.environ if launch_env is None else launch_env)
    written = {} if kernel_spec is None else kernel_spec.env
    return base, {name: Template(text).safe_substitute(base) for name, text in written.items()}


def program_of(kernel_spec: Any) -> str | None:  # noqa: ANN401 - as above
    """Return what will run; None for the server's own Python, which a bare "python" means."""
    argv = [] if kernel_spec is None else kernel_spec.argv
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    bare = ("python", f"python{sys.version_info[0]}", f"python{version}")
    return None if not argv or argv[0] in bare else str(argv[0])


def origin_of(kernel_spec: Any) -> Origin:  # noqa: ANN401 - as above
    """Return whether a request comes from the kernelspec or from the server's configuration."""
    metadata = None if kernel_spec is None else kernel_spec.metadata
    return "kernelspec" if config_of({"metadata": metadata or {}}) else "server"
