"""What can be asked of the preparation of a corpus?"""

import re
from dataclasses import dataclass

from minibert.cores import cores
from minibert.data.sources import EncodingErrors
from minibert.data.tokenizer import TokenizerSettings
from minibert.data.work_folder import Shard
from minibert.errors import UserError
from minibert.types import PositiveInt, UnitInterval

NOT_OF_THE_CORPUS = ("output", "overwrite", "processes", "shard", "merge")
"""Fields that do not change what is in the corpus."""


@dataclass(frozen=True)
class PrepareConfig:
    """Turn text into a corpus: a tokenizer, and token ids of train and validation documents.

    A run that was killed goes on where it was when the same command is given again.
    """

    sources: list[str] | str
    """Where the text is: files, folders, globs (.txt .jsonl .csv .tsv .parquet, each may be .gz; in a .txt a blank line
    ends a document), a directory saved by `datasets`, hub:NAME[:CONFIG][:SPLIT], or an open corpus: wiki-summaries,
    imdb, rotten-tomatoes."""
    output: str
    """The folder to make."""
    vocab_size: PositiveInt = 16_384
    """Number of entries of the vocabulary to train, special tokens included."""
    lowercase: bool = True
    """Whether upper and lower case are the same to the trained tokenizer."""
    strip_accents: bool | None = None
    """Whether the trained tokenizer removes accents; null: as `lowercase` says, as published BERT does."""
    tokenizer: str | None = None
    """A folder with a tokenizer to take instead of training one."""
    tokenizer_sample: PositiveInt = 100_000_000
    """A tokenizer is trained on at most this many characters; of a longer text, on a half, quarter, ... of it."""
    language: str = "en"
    """Code of the language (en, de, zh, ...): it tells abbreviations from the ends of sentences."""
    mark_words: bool = False
    """Whether to mark the words of Chinese text, for whole-word masking; needs the zh extra."""
    text_field: str = "text"
    """The field or column of tables that holds the text."""
    encoding_errors: EncodingErrors = "strict"
    """What to do with a line that is not UTF-8: stop there, replace its bad bytes by U+FFFD, or skip it."""
    validation_share: UnitInterval = 0.01
    """Share of the documents that is held out, at most 0.5; 0 holds out none. Near copies of them are dropped."""
    validation_documents: PositiveInt = 1000
    """At most this many documents are held out."""
    deduplicate: bool = True
    """Whether of equal documents only the first is kept."""
    overwrite: bool = False
    """Whether a corpus of other settings or sources at `output` may be replaced."""
    processes: PositiveInt | None = None
    """Processes that encode; null: as many as there are cores for this one. The corpus is the same for any number."""
    shard: str | None = None
    """i/n: encode only the i-th of n parts of the text, as one of n jobs on machines that share a file system; i counts
    from 0 or from 1. At the end one more job puts the parts together: --merge."""
    merge: bool = False
    """Only put together what the jobs with --shard have encoded."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise UserError("sources is empty; expected one file, folder or open corpus at least")
        if self.tokenizer is None:
            self.for_tokenizer()
        if self.validation_share > 0.5:
            raise UserError(f"validation_share is {self.validation_share}; expected at most 0.5")
        if self.validation_documents < 2:
            raise UserError(f"validation_documents is {self.validation_documents}; expected 2 at least")
        if not re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*", self.language):
            raise UserError(f"language is {self.language!r}; expected the code of a language, such as en or zh")
        if self.shard is not None and self.merge:
            raise UserError(f"shard is {self.shard} and merge is true; expected one of the two")
        self.as_shard()

    def for_tokenizer(self) -> TokenizerSettings:
        """What a tokenizer is trained with. Raises `UserError` where the vocabulary has no room."""
        return TokenizerSettings(self.vocab_size, self.lowercase, self.strip_accents)

    def as_shard(self) -> Shard | None:
        """`shard` as numbers. Raises `UserError` where it is no part of a whole."""
        if self.shard is None:
            return None
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", self.shard, re.ASCII)
        if not found or not int(found[1]) <= int(found[2]) or int(found[2]) == 0:
            raise UserError(f"shard is {self.shard}; expected i/n with i from 0 to n - 1, or from 1 to n, such as 1/8")
        return Shard(int(found[1]), int(found[2]))

    def count_processes(self) -> int:
        """How many processes encode."""
        return self.processes or max(1, int(cores()))
