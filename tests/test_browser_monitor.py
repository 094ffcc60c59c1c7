"""The monitor in a real browser: moving while a cell runs, still after it, never jumping."""

import json
import os
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from conftest import poll
from support_browser import (
    GIB,
    PICTURES,
    WIDE,
    artefacts,
    browser,
    kept_site,
    lab,
    machine,
    picture,
    site,
    tree,
)

from jupyter_gpu.feed import THREAD_NAME

__all__ = ["artefacts", "browser", "kept_site", "lab", "site", "tree"]

TWO, NONE = "PyTorch (2 GPUs)", "PyTorch (no GPU)"
LIVE, PICTURE = ".jgm.widget-vbox", ".jgm:not(.widget-vbox)"
THREADS = f"import threading; print([t.name for t in threading.enumerate()].count({THREAD_NAME!r}))"
AXE = os.environ.get("JUPYTER_GPU_AXE")
NARROW = 400

# Where the cards and numbers of a monitor lie, and what of it is outside or cut.
_BOXES = """root => {
  const from = root.getBoundingClientRect();
  const box = one => {
    const {x, y, width, height} = one.getBoundingClientRect();
    return [x - from.x, y - from.y, width, height].map(Math.round);
  };
  const all = name => [...root.querySelectorAll(name)];
  const outside = one => one.checkVisibility() && !one.closest('.gk *, .gi *')
    && one.getBoundingClientRect().right > from.right + 1;
  return {
    cards: all('.gk').map(box),
    numbers: all('.gi').map(box),
    outside: all('*').filter(outside).map(one => one.outerHTML.slice(0, 80)),
    cut: all('.gi p').filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText),
    sideways: root.scrollWidth - root.clientWidth,
  };
}"""
# What the style sheet says below the state: no script is there to say it.
_BELOW_THE_STATE = "root => getComputedStyle(root.querySelector('.gs'), '::after').content"
# How often a monitor's page changes in so many milliseconds.
_CHANGES = """(root, milliseconds) => new Promise(done => {
  let changes = 0;
  const watch = new MutationObserver(seen => { changes += seen.length });
  watch.observe(root, {subtree: true, childList: true, characterData: true, attributes: true});
  setTimeout(() => { watch.disconnect(); done(changes) }, milliseconds);
})"""


def in_use(pid, mine, others, load):
    """Keys of a GPU on which the kernel and others use so many GiB."""
    processes = [{"pid": pid, "memory_bytes": mine * GIB}]
    used = (mine + others) * GIB
    return {"memory_used_bytes": used, "utilization_percent": load, "processes": processes}


def live(cell):
    return cell.output.locator(f"{LIVE} >> visible=true")


def boxes(cell):
    return live(cell).evaluate(_BOXES)


def open_notebook(window, front_end, title=TWO):
    notebook = window.launch(title) if front_end == "lab" else window.pick_new(title)
    notebook.ready()
    return notebook


@pytest.fixture(params=["lab", "tree"])
def notebook(request):
    """A notebook with two devices, in JupyterLab and in Notebook 7."""
    return open_notebook(request.getfixturevalue(request.param), request.param)


@pytest.fixture
def lab_notebook(lab):
    """A notebook with two devices in JupyterLab."""
    return open_notebook(lab, "lab")


def test_it_moves_while_a_cell_runs_and_stands_still_after_the_last_one(site, notebook):
    cell = notebook.run("%gpu monitor")
    cell.says("2 of 4 GPUs are yours", "cuda:0 = physical 0", "cuda:1 = physical 1")
    assert live(cell).locator(".gk >> visible=true").count() == 2
    assert cell.output.locator(f"{PICTURE} >> visible=true").count() == 0
    pid = notebook.kernel_pid
    with notebook.busy():
        cell.says("Live while a cell runs")
        assert cell.output.get_by_role("button", name="the kernel is busy").is_disabled()
        site.write(machine(4, changes=[in_use(pid, 30, 5, 77)]))
        cell.says("30.0 mine, 5.0 others", "Load 77 %", "30.0 GiB")
        site.write(machine(4, changes=[in_use(pid, 31, 6, 91), in_use(pid, 12, 0, 8)]))
        cell.says("31.0 mine, 6.0 others", "Load 91 %", "12.0 mine, 0.0 others", "Load 8 %")
        notebook.window.shot("moving", page=notebook.page)
    cell.says("Still since", "31.0 mine")
    again = cell.output.get_by_role("button", name="Look again")
    poll(again.is_enabled)
    poll(lambda: live(cell).evaluate(_CHANGES, 1200) == 0)  # the last update, 3 s after the cell
    since = re.search(r"Still since [\d:]+", cell.text).group()
    site.write(machine(4, changes=[in_use(pid, 50, 0, 1)]))
    assert live(cell).evaluate(_CHANGES, 1500) == 0
    assert since in cell.text
    again.click()
    cell.says("50.0 mine", "Load 1 %", "Still since")


def sixteen_and_seven_parts(**keys):
    """A machine of 16 whole GPUs like this, and one in seven parts."""
    described = machine(17, changes=[keys] * 16)
    described["gpus"][16]["mig"] = [{"profile": "1g.18gb"} for _ in range(7)]
    return described


SIX_MONITORS = """
import jupyter_gpu
from IPython.display import display
parts = [one.uuid for one in jupyter_gpu.inventory().devices if one.kind == "mig"]
for some in (0, range(2), range(8), range(16), parts):
    display(jupyter_gpu.Monitor(some))
display(jupyter_gpu.Monitor(range(8), compact=True))
""".strip()
WHOLE = ".jp-Cell-outputArea {max-height: none !important; overflow: visible !important}"
HIGH = "html, body {min-height: 100vh !important; overflow: visible !important}"
CARDS = [1, 2, 8, 16, 7, 8]


@pytest.mark.parametrize("width", [NARROW, WIDE[0]])
def test_nothing_jumps_or_sticks_out_with_any_number_of_devices(site, tree, width):
    site.write(sixteen_and_seven_parts())
    notebook = open_notebook(tree, "tree")
    notebook.page.set_viewport_size({"width": width, "height": 9000})
    cell = notebook.run(SIX_MONITORS)
    notebook.page.add_style_tag(content=WHOLE)
    shown = live(cell)
    poll(lambda: [one.locator(".gk").count() for one in shown.all()] == CARDS)
    pid = notebook.kernel_pid
    seen = [[one.evaluate(_BOXES) for one in shown.all()]]
    with notebook.busy():
        cell.counts("Live while a cell runs", len(CARDS))
        for mine, others, load in ((0, 0, 0), (100, 30, 100), (13, 1, 7)):
            site.write(sixteen_and_seven_parts(**in_use(pid, mine, others, load)))
            cell.counts(f"{mine}.0 mine, {others}.0 others", sum(CARDS) - 7)
            seen.append([one.evaluate(_BOXES) for one in shown.all()])
        tree.shot("all", page=notebook.page)
    first, *later = [[one["cards"] for one in monitors] for monitors in seen]
    assert later == [first] * 3
    for one in [one for monitors in seen for one in monitors]:
        assert one["cards"] == one["numbers"]
        assert len({height for _, _, _, height in one["cards"]}) == 1
        assert (one["outside"], one["cut"], one["sideways"]) == ([], [], 0)
    assert notebook.page.evaluate("document.scrollingElement.scrollWidth <= window.innerWidth")


def test_without_a_device_it_says_so(lab):
    notebook = open_notebook(lab, "lab", NONE)
    cell = notebook.run("%gpu monitor")
    cell.says("No GPU is visible in this kernel (4 GPUs on this machine)")
    assert live(cell).locator(".gk").count() == 0
    with notebook.busy():
        cell.says("Live while a cell runs")
    cell.says("Still since")


def test_a_reloaded_page_has_it_again_and_it_moves(site, lab_notebook):
    notebook = lab_notebook
    notebook.run("%gpu monitor").says("cuda:1 = physical 1")
    notebook.save()
    notebook.page.reload()
    notebook.ready()
    cell = notebook.cell(0).says("cuda:1 = physical 1")
    live(cell).wait_for()
    with notebook.busy():
        site.write(machine(4, changes=[in_use(notebook.kernel_pid, 30, 5, 77)]))
        cell.says("30.0 mine, 5.0 others", "Load 77 %")
    assert live(cell).count() == 1
    notebook.window.shot("reloaded")


def test_after_a_restart_the_old_view_harms_nothing_and_the_cell_gives_a_new_one(
    site, lab_notebook
):
    notebook = lab_notebook
    old = notebook.run("%gpu monitor").says("cuda:1 = physical 1")
    notebook.restart()
    notebook.ready()
    notebook.run("print('here')").says("here")
    poll(lambda: "The kernel that drew this has ended" in live(old).evaluate(_BELOW_THE_STATE))
    left = boxes(old)
    assert left["cards"] == left["numbers"]
    assert not old.output.get_by_role("button", name="Look again").is_visible()
    cell = notebook.run_again(0).says("cuda:1 = physical 1")
    with notebook.busy():
        site.write(machine(4, changes=[in_use(notebook.kernel_pid, 30, 5, 77)]))
        cell.says("30.0 mine, 5.0 others", "Load 77 %")
    assert live(cell).count() == 1
    assert "Error displaying widget" not in cell.text


def test_the_rest_of_the_machine_unfolds_by_the_keyboard_and_stays_so(site, lab_notebook):
    notebook = lab_notebook
    cell = notebook.run("%gpu monitor").says("The rest of this machine: 2 devices, 2 free")
    rest = live(cell).get_by_text("Held by")
    assert not rest.is_visible()
    live(cell).get_by_role("checkbox").focus()
    notebook.page.keyboard.press("Space")
    rest.wait_for(state="visible")
    with notebook.busy():
        site.write(machine(4, changes=[{}, {}, {"utilization_percent": 64}]))
        cell.says("64 %")
    assert rest.is_visible()


def test_clearing_the_output_ends_the_watching(site, lab_notebook):
    notebook = lab_notebook
    cell = notebook.run("%gpu monitor").says("cuda:1 = physical 1")
    kernel_id = notebook.kernel_id
    with notebook.busy():
        cell.says("Live while a cell runs")
    assert site.server.run(kernel_id, THREADS) == "1"
    notebook.menu("Edit", "Clear Outputs of All Cells")
    live(cell).wait_for(state="detached")
    poll(lambda: site.server.run(kernel_id, THREADS) == "0")


def test_where_there_are_no_widgets_a_saved_notebook_shows_the_last_state_once(
    site, lab_notebook, artefacts
):
    notebook = lab_notebook
    cell = notebook.run("%gpu monitor")
    pid = notebook.kernel_pid
    with notebook.busy():
        site.write(machine(4, changes=[in_use(pid, 30, 5, 77)]))
        cell.says("30.0 mine, 5.0 others")
    cell.says("Still since", "30.0 mine")
    notebook.save()
    with site.without_widgets():
        notebook.window.open_lab(f"/tree/{notebook.path}")
        notebook.ready()
        seen = notebook.cell(0).says("30.0 mine, 5.0 others")
        notebook.window.shot("without-widgets")
        assert seen.output.locator(".gk >> visible=true").count() == 2
        assert seen.text.count("2 of 4 GPUs are yours") == 1
        assert re.search(r"At \d\d:\d\d:\d\d on \d{4}-\d\d-\d\d", seen.text)
        assert "Error" not in seen.text


def axe(page, places):
    """What axe-core finds in these places of a page: rules that ran, and what is wrong."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found = page.evaluate("place => axe.run({include: [[place]]})", places)
    rules = {kind: sorted(rule["id"] for rule in found[kind]) for kind in ("passes", "incomplete")}
    wrong = [
        {"rule": rule["id"], "html": [node["html"][:300] for node in rule["nodes"]]}
        for rule in found["violations"]
    ]
    return {"axe": found["testEngine"]["version"], "violations": wrong, **rules}


def test_axe_finds_nothing_wrong_in_what_is_shown(site, lab_notebook, browser):
    notebook = lab_notebook
    pid = notebook.kernel_pid
    site.write(machine(4, changes=[in_use(pid, 30, 5, 77), in_use(pid, 12, 0, 8)]))
    shown = {
        "%gpu": notebook.run("%gpu"),
        "%gpu monitor": notebook.run("%gpu monitor"),
        "%gpu monitor --compact": notebook.run("%gpu monitor --compact"),
        "a picture of the monitor": notebook.run(
            "import jupyter_gpu; display(jupyter_gpu.Monitor(live=False))"
        ),
    }
    for cell in shown.values():
        cell.says("2 of 4 GPUs are yours")
    live(shown["%gpu monitor"]).get_by_text("The rest of this machine: 2 devices").click()
    # Lab's body has no height: to axe, all in it is outside of the screen and has no contrast.
    notebook.page.add_style_tag(content=HIGH)
    notebook.page.set_viewport_size({"width": WIDE[0], "height": 2200})
    found = {}
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        notebook.theme(theme)
        for name, cell in shown.items():
            cell.place.scroll_into_view_if_needed()
            cell.output.evaluate("area => area.setAttribute('data-judged', '')")
            judged = axe(notebook.page, "[data-judged] .jp-OutputArea-output")
            cell.output.evaluate("area => area.removeAttribute('data-judged')")
            found[f"{name}, {theme}"] = judged
            notebook.window.shot("axe")
    used = {"axe-core": judged["axe"], "chromium": browser.version}
    used |= {name: version(name) for name in ("jupyterlab", "ipywidgets")}
    result = {"schema": 1, "versions": used, "outputs": found}
    for one in found.values():
        del one["axe"]
        assert "color-contrast" in [*one["passes"], *(wrong["rule"] for wrong in one["violations"])]
    if AXE:
        Path(AXE).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    assert {name: one["violations"] for name, one in found.items() if one["violations"]} == {}


@pytest.mark.skipif(
    not PICTURES, reason="JUPYTER_GPU_PICTURES asks for the documentation's pictures"
)
def test_the_pictures_of_the_documentation_are_drawn(site, lab_notebook):
    notebook = lab_notebook
    pid = notebook.kernel_pid
    first = notebook.run("%gpu")
    cell = notebook.run("%gpu monitor")
    with notebook.busy():
        for step in range(40):
            mine, load = min(11 + 7 * step, 96), (88, 93, 71, 97)[step % 4]
            other = in_use(pid, mine // 2, 0, max(load - 12, 0))
            site.write(machine(4, changes=[in_use(pid, mine, 4, load), other]))
            cell.says(f"{mine}.0 mine, 4.0 others", f"Load {load} %")
        for theme, name in (("JupyterLab Light", "light"), ("JupyterLab Dark", "dark")):
            notebook.theme(theme)
            picture(f"monitor-{name}", notebook.page, live(cell))
    notebook.theme("JupyterLab Light")
    notebook.run_again(0).says("96.0 GiB here")
    clip = first.place.bounding_box()
    picture("gpu", notebook.page, clip={**clip, "height": clip["height"] - 12})
