"""Notebook 7 in a real browser, from its menu New on."""

import pytest
from support_browser import a_site, artefacts, browser, site, the_lease, tree

import jupyter_gpu

__all__ = ["artefacts", "browser", "site", "tree"]

TWO = "PyTorch (2 GPUs)"


@pytest.fixture(scope="module")
def kept_site(browser, artefacts):
    """The module's server; a start that is refused takes so long that the other tab is open."""
    with a_site(browser, artefacts, wait="2s") as started:
        yield started


def test_the_menu_new_has_the_entry_and_the_map_shows_its_devices(tree):
    notebook = tree.pick_new(TWO)
    kernel_id = notebook.ready()
    cell = notebook.run("%gpu")
    cell.says("2 of 4 GPUs are yours", "cuda:0 = physical 0", "cuda:1 = physical 1", "2, 3 free")
    record = the_lease().record
    assert (record.indices, record.owner.kernel_id) == ((0, 1), kernel_id)


def test_a_refusal_is_a_dialog_with_all_its_words_and_a_later_try_succeeds(tree):
    with jupyter_gpu.acquire(3):
        # The list of files starts the kernel and then lets the notebook go to a tab of its own,
        # which does not know of the refusal: it asks for a kernel, and the next one is shown.
        notebook = tree.pick_new(TWO)
        page = notebook.page
        asks = page.locator(".jp-Dialog", has_text="Select Kernel")
        asks.locator("select").select_option(label=TWO)
        asks.locator(".jp-mod-accept").click()
        dialog = page.locator(".jp-Dialog", has_text="Error Starting Kernel")
        dialog.wait_for()
        lines = [line.strip() for line in dialog.inner_text().splitlines() if line.strip()]
        tree.shot("refused", page=page)
        assert lines[:2] == ["Error Starting Kernel", "No 2 GPUs are free (4 on this machine)."]
        assert any(line.startswith("0, 1, 2  ") for line in lines)
        assert any(line.startswith("3  free") for line in lines)
        assert "jupyter gpu install --gpus 2 --wait 30m --name wait-2" in lines
        dialog.locator(".jp-mod-accept").click()
        if asks.count():
            asks.locator(".jp-mod-reject").click()
        page.locator(".jp-Dialog").wait_for(state="detached")
        notebook.change_kernel("PyTorch (1 GPU)")
        notebook.ready()
        notebook.run("%gpu").says("1 of 4 GPUs is yours", "cuda:0 = physical 3")
