"""A corpus on disk: a tokenizer and memory-mapped token ids, split by document.

    CORPUS/  corpus.json                fingerprint, counts, warnings, settings, sources, versions
             tokenizer/                 as `load_tokenizer` and `transformers.AutoTokenizer` read it
             train.*  validation.*      documents of sentences of token ids, see `token_store`

`build_corpus` makes one from text, see `preparation`; `Corpus.open` reads it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from minibert.data.corpus_files import read_description
from minibert.data.preparation import Built, build_corpus, encode_shard
from minibert.data.prepare_config import PrepareConfig
from minibert.data.token_store import Booleans, Ids, Offsets, open_tokens

__all__ = ["Built", "Corpus", "PrepareConfig", "build_corpus", "encode_shard"]


@dataclass(frozen=True, eq=False)
class Corpus:
    """One split of a corpus: a flat stream of token ids, and where its sentences and documents begin.

    Sentence s of the split is `tokens(sentence_offsets[s], sentence_offsets[s + 1])`.
    """

    directory: Path
    split: str
    fingerprint: str
    """Of the whole corpus: equal for equal vocabulary, settings and token ids."""
    vocab_size: int
    document_offsets: Offsets
    """[documents + 1]: sentences `[d]` to `[d + 1]` are document d."""
    sentence_offsets: Offsets
    """[sentences + 1]: tokens `[s]` to `[s + 1]` are sentence s."""
    tokens: Callable[[int, int], Ids]
    """`tokens(begin, end)`: the ids of that range of the stream, a view of the mapped file where possible."""
    continues: Callable[[int, int], Booleans | None]
    """`continues(begin, end)`: which of these tokens continue a word; None where the corpus marks no words."""

    @staticmethod
    def open(directory: str | Path, split: Literal["train", "validation"]) -> "Corpus":
        """Map one split into memory. Raises `UserError` where `directory` is no corpus of this version, or damaged."""
        directory = Path(directory)
        about = read_description(directory)
        store = open_tokens(directory, split)
        return Corpus(
            directory,
            split,
            about["fingerprint"],
            about["vocab_size"],
            store.document_offsets,
            store.sentence_offsets,
            store.tokens,
            store.continues,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Corpus.open, (self.directory, self.split)  # another process maps the file; it gets no copy
