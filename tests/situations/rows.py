"""What a row is made of: cells, and what has to be shown under each."""

from dataclasses import dataclass, field

CVD = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Cell:
    """A cell's text, and words that its hint, its answer or its error must have.

    Without ``hint`` nothing may be said under it.
    """

    code: str
    hint: tuple = ()
    answer: tuple = ()
    without: tuple = ()
    fails: bool = False


@dataclass(frozen=True)
class Row:
    """One situation: its number, the machine, the kernel, and the cells in their order.

    ``part`` tells rows of one number apart. ``gpus`` describe the machine, four equal GPUs where
    it says nothing; ``ours`` are the wrapper's options, None for a plain ipykernel. ``play`` is a
    function of the world instead of cells.
    """

    number: str
    cells: tuple = ()
    part: str = ""
    gpus: tuple = ()
    driver: dict = field(default_factory=dict)
    environ: dict = field(default_factory=dict)
    standins: tuple = ()
    ours: tuple | None = None
    play: object = None

    @property
    def id(self):
        return f"{self.number}-{self.part}" if self.part else self.number


def silent(*codes):
    """Cells under which nothing is said."""
    return tuple(Cell(code) for code in codes)


def said(code, *words, fails=False):
    """A cell under which a hint with these words is shown."""
    return (Cell(code, hint=words, fails=fails),)


def shows(code, *words, without=()):
    """A cell whose answer has these words."""
    return (Cell(code, answer=words, without=without),)


def setting(value):
    """A cell's text that sets the variable."""
    return f'import os\nos.environ["{CVD}"] = "{value}"'
