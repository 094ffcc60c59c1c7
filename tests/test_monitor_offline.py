"""A monitor that nobody runs any more: saved, converted and opened offline, it shows what it saw."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from jupyter_client import KernelManager
from kernels import KERNELSPECS

GIB = 2**30
BIN = Path(sys.executable).parent
CHROMIUM = Path("/usr/bin/chromium")
VIEW = "application/vnd.jupyter.widget-view+json"
BEFORE, AFTER = 12, 77

CHANGE = f"""
import json, os, pathlib
path = pathlib.Path(os.environ["JUPYTER_GPU_SIMULATE"])
machine = json.loads(path.read_text())
machine["gpus"][0]["memory_used_bytes"] = {AFTER * GIB}
path.with_suffix(".next").write_text(json.dumps(machine))
path.with_suffix(".next").replace(path)
"""
CELLS = ("%load_ext jupyter_gpu", "%gpu monitor", CHANGE)


@pytest.fixture
def two_gpus(simulate):
    """A machine of two devices: the first has 12 GiB in use until a cell makes them 77."""
    gpu = {"name": "NVIDIA H200", "memory_total_bytes": 140 * GIB, "utilization_percent": 40}
    simulate({"gpus": [{**gpu, "memory_used_bytes": used * GIB} for used in (BEFORE, 3)]})


@pytest.fixture
def kernelspecs(lease_directory, monkeypatch):
    """Our kernelspecs, where Jupyter finds them."""
    share = lease_directory.parent / "share"
    shutil.copytree(KERNELSPECS, share / "kernels")
    monkeypatch.setenv("JUPYTER_PATH", str(share))


@pytest.fixture
def visible_text(tmp_path):
    """What a person sees of an HTML file in a browser that reaches nothing but files."""
    if not CHROMIUM.exists():
        if os.environ.get("CI"):
            pytest.fail("CI looks at pages with Chromium: apt-get install chromium")
        pytest.skip("needs /usr/bin/chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=arguments)
        try:

            def look(path, script="document.body.innerText"):
                page = browser.new_page()
                page.goto(path.as_uri(), wait_until="domcontentloaded")
                return page.evaluate(script)

            yield look
        finally:
            browser.close()


def notebook(folder, *sources, name="watch.ipynb", kernel="python3"):
    """Write a notebook of these cells; returns its path."""
    document = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in sources or CELLS],
        metadata={"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}},
    )
    nbformat.write(document, folder / name)
    return folder / name


def run(*words, **environ):
    """Run a command of this environment, and return what it said; it has to succeed."""
    done = subprocess.run(
        [str(BIN / words[0]), *map(str, words[1:])],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def convert(path, kind="html", *more):
    """Convert a notebook with nbconvert; returns the file that it wrote."""
    said = run("jupyter", "nbconvert", "--to", kind, *more, path)
    assert "Traceback" not in said
    return path.with_suffix({"html": ".html", "markdown": ".md", "script": ".py"}[kind])


def shown(document):
    """The outputs of a notebook that are shown, as their bundles."""
    return [
        output["data"]
        for cell in document.cells
        for output in cell.get("outputs", ())
        if output.output_type == "display_data"
    ]


def gib(number):
    return f"{number}.0"


def test_nbconvert_runs_a_notebook_and_shows_the_last_numbers_offline(
    tmp_path, two_gpus, visible_text
):
    page = convert(notebook(tmp_path), "html", "--execute")
    markup = page.read_text(encoding="utf-8")
    assert "application/vnd.jupyter.widget" not in markup
    text = visible_text(page)
    assert text.count("cuda:0") == text.count("cuda:1") == 1
    assert gib(AFTER) in text
    assert gib(BEFORE) not in text


def test_a_run_notebook_has_one_picture_of_the_end_and_no_widgets(tmp_path, two_gpus):
    run("jupyter", "execute", "--inplace", notebook(tmp_path))
    document = nbformat.read(tmp_path / "watch.ipynb", as_version=4)
    (bundle,) = shown(document)
    assert set(bundle) == {"text/html", "text/plain"}
    for text in bundle.values():
        assert gib(AFTER) in text
        assert gib(BEFORE) not in text
    assert "widgets" not in document.metadata


def test_papermill_leaves_the_picture_of_the_end_and_no_widgets(tmp_path, two_gpus):
    run("papermill", notebook(tmp_path), tmp_path / "done.ipynb", "--no-progress-bar")
    document = nbformat.read(tmp_path / "done.ipynb", as_version=4)
    (bundle,) = shown(document)
    assert gib(AFTER) in bundle["text/html"]
    assert VIEW not in bundle
    assert "widgets" not in document.metadata


def test_markdown_and_scripts_are_readable(tmp_path, two_gpus):
    path = notebook(tmp_path)
    run("jupyter", "execute", "--inplace", path)
    markdown = convert(path, "markdown").read_text(encoding="utf-8")
    assert gib(AFTER) in markdown
    assert gib(BEFORE) not in markdown
    script = convert(path, "script").read_text(encoding="utf-8")
    compile(script, "watch.py", "exec")
    assert "cuda:0" not in script


def test_plain_text_shows_the_devices_within_eighty_columns(tmp_path, two_gpus):
    run("jupyter", "execute", "--inplace", notebook(tmp_path))
    (bundle,) = shown(nbformat.read(tmp_path / "watch.ipynb", as_version=4))
    lines = bundle["text/plain"].splitlines()
    assert any("cuda:0" in line and gib(AFTER) in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_notebook_with_an_evil_name_is_only_text(tmp_path, simulate, kernelspecs, visible_text):
    simulate("2xH200")
    name = "<img src=x onerror=\"document.title='taken'\"> <script>.ipynb"
    path = notebook(tmp_path, *CELLS[:2], name=name, kernel="pytorch-1gpu")
    run(
        "jupyter", "nbconvert", "--to", "html", "--execute", "--output", "safe.html", path,
        JPY_SESSION_NAME=str(path),
    )  # fmt: skip
    page = tmp_path / "safe.html"
    text = visible_text(page)
    assert "<img src=x onerror=" in text
    assert visible_text(page, "document.querySelectorAll('.jgm img, .jgm script').length") == 0
    assert visible_text(page, "document.title") != "taken"


class FrontEnd:
    """Runs cells as JupyterLab does, and keeps their outputs as it saves them."""

    def __init__(self, client):
        self.client = client
        self.cells, self.sent, self.displays = [], {}, {}

    def run(self, source):
        """Run a cell and take in what comes until it has ended."""
        cell = nbformat.v4.new_code_cell(source)
        self.cells.append(cell)
        content = {
            "code": source,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": True,
            "stop_on_error": True,
        }
        message = self.client.session.msg(
            "execute_request", content, metadata={"cellId": cell["id"], "trusted": True}
        )
        self.client.shell_channel.send(message)
        self.sent[message["header"]["msg_id"]] = cell
        mine = message["header"]["msg_id"]
        self.listen(
            lambda heard: (
                heard["msg_type"] == "status"
                and heard["content"]["execution_state"] == "idle"
                and heard["parent_header"].get("msg_id") == mine
            )
        )

    def listen(self, until):
        """Take in messages until one is what is waited for."""
        deadline = time.monotonic() + 60
        while True:
            heard = self.client.get_iopub_msg(timeout=max(0.01, deadline - time.monotonic()))
            self._take(heard)
            if until(heard):
                return heard

    def _take(self, heard):
        kind, content = heard["msg_type"], heard["content"]
        assert kind != "error", content
        identity = content.get("transient", {}).get("display_id")
        if kind == "display_data":
            output = nbformat.v4.new_output(
                "display_data", data=content["data"], metadata=content["metadata"]
            )
            self.sent[heard["parent_header"]["msg_id"]].outputs.append(output)
            if identity is not None:
                self.displays.setdefault(identity, []).append(output)
        elif kind == "update_display_data":
            for output in self.displays.get(identity, ()):
                output["data"] = nbformat.from_dict(content["data"])

    def open_view(self):
        """Say as a front end does that there is a view of the first widget."""
        (model,) = {bundle[VIEW]["model_id"] for bundle in shown(self) if VIEW in bundle}
        data = {"method": "update", "state": {"_view_count": 1}, "buffer_paths": []}
        message = self.client.session.msg("comm_msg", {"comm_id": model, "data": data})
        self.client.shell_channel.send(message)

    def save(self, path):
        """Write the notebook, without the state of its widgets."""
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
        document = nbformat.v4.new_notebook(cells=self.cells, metadata=metadata)
        nbformat.validate(document)
        nbformat.write(document, path)


@pytest.fixture
def front_end(two_gpus):
    """A front end with a person, and its kernel."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        yield FrontEnd(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)


@pytest.fixture
def saved(front_end, tmp_path):
    """The path of a notebook with a live monitor as JupyterLab saves it, after the last cell."""
    front_end.run(CELLS[0])
    front_end.run(CELLS[1])
    front_end.open_view()
    front_end.run(CELLS[2])
    front_end.listen(
        lambda heard: (
            heard["msg_type"] == "update_display_data"
            and gib(AFTER) in heard["content"]["data"]["text/html"]
        )
    )
    front_end.save(tmp_path / "watch.ipynb")
    return tmp_path / "watch.ipynb"


def test_a_saved_notebook_has_the_live_view_and_the_last_picture(saved):
    first, last = shown(nbformat.read(saved, as_version=4))
    assert set(first) == {VIEW, "text/html", "text/plain"}
    assert gib(BEFORE) in first["text/html"]
    assert gib(AFTER) in last["text/html"]
    assert gib(AFTER) in last["text/plain"]


def test_a_saved_notebook_converts_to_a_page_with_the_last_state_once(saved, visible_text):
    page = convert(saved)
    markup = page.read_text(encoding="utf-8")
    assert "application/vnd.jupyter.widget" not in markup
    text = visible_text(page)
    assert text.count("cuda:0") == text.count("cuda:1") == 1
    assert gib(AFTER) in text
    assert gib(BEFORE) not in text


def test_a_notebook_saved_before_any_other_cell_shows_what_there_was(
    front_end, tmp_path, visible_text
):
    front_end.run(CELLS[0])
    front_end.run(CELLS[1])
    front_end.save(tmp_path / "watch.ipynb")
    script = (
        "document.querySelectorAll('details').forEach(one => one.open = true),"
        "document.body.innerText"
    )
    text = visible_text(convert(tmp_path / "watch.ipynb"), script)
    assert text.count("cuda:0") == 1
    assert gib(BEFORE) in text


def test_a_saved_notebook_is_small(saved):
    document = json.loads(saved.read_text(encoding="utf-8"))
    assert "widgets" not in document["metadata"]
    assert saved.stat().st_size < 64_000
