"""How does long work tell how far it is? It calls what it was given: by default nothing is shown."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Item = TypeVar("Item")

Track = Callable[[Iterable[Any], str, int | None], Iterable[Any]]
"""Called with items (documents, or pieces), the name of the stage, and their number if it is known; passes them on."""

Notify = Callable[[str], None]
"""Called with a line for the user."""


def untracked(items: Iterable[Item], stage: str, total: int | None) -> Iterable[Item]:
    """Pass the items on."""
    return items


def silent(line: str) -> None:
    """Say nothing."""
