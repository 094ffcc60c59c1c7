"""What holds a framework's memory, by the names that a person knows. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holder:
    """Memory that one variable holds, or that several hold together.

    ``names`` are all who hold it: it comes back when each of them is gone. ``about`` is the type
    of the first one.
    """

    names: tuple[str, ...]
    number_bytes: int
    tensors: int
    about: str

    def as_json(self) -> dict[str, object]:
        """Return it for a program."""
        return {
            "names": list(self.names),
            "bytes": self.number_bytes,
            "tensors": self.tensors,
            "type": self.about,
        }


@dataclass(frozen=True, slots=True)
class Held:
    """All that holds memory: ``unnamed`` tensors are reached by no name.

    ``complete`` is false where there was too much to look at.
    """

    holders: tuple[Holder, ...] = ()
    unnamed: int = 0
    unnamed_bytes: int = 0
    complete: bool = True

    @property
    def number_bytes(self) -> int:
        """The memory of all tensors that were found."""
        return sum(holder.number_bytes for holder in self.holders) + self.unnamed_bytes
