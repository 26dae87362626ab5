"""How large are the encoders that are compared? Like Turc et al. 2019, with heads of 64 and BERT's words."""

from typing import NamedTuple

VOCABULARY = 30_522


class Shape(NamedTuple):
    """An encoder of so many layers, so wide."""

    layers: int
    hidden: int
    vocabulary: int = VOCABULARY

    @property
    def heads(self) -> int:
        """Of 64 each."""
        return max(1, self.hidden // 64)

    @property
    def inner(self) -> int:
        """Width of the feed-forward network."""
        return 4 * self.hidden


SIZES = {
    "tiny": Shape(2, 128),
    "mini": Shape(4, 256),
    "small": Shape(4, 512),
    "base": Shape(12, 768),
    "large": Shape(24, 1024),
}
