import pytest

from jupyter_gpu.faces.monitor_count import ViewCount


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ([(1, "a"), (-1, "a")], [1, 0]),
        ([(1, "a"), (1, "a"), (-1, "a")], [1, 2, 1]),
        # A reload adds a view and takes none away: the old page's is no more.
        ([(1, "a"), (1, "b"), (-1, "b")], [1, 1, 0]),
        ([(2, "a"), (1, "b"), (1, "b"), (-1, "b"), (-1, "b")], [2, 1, 2, 1, 0]),
        # An older page that is still open goes: the newest one still has its view.
        ([(1, "a"), (1, "b"), (-1, "a")], [1, 1, 1]),
        ([(1, None), (-1, None)], [1, 0]),
        ([(-1, "a")], [0]),
        ([(1, "a"), (-3, "a"), (1, "a")], [1, 0, 1]),
    ],
)
def test_only_the_newest_page_is_believed(changes, counts):
    views = ViewCount()
    assert [views.change(difference, page) for difference, page in changes] == counts
