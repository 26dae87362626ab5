"""What stands in corpus.json, and does it fit the files beside it?"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from minibert.data.token_store import open_tokens, read_tokens, token_files
from minibert.errors import UserError

FORMAT = 2
"""Version of the layout; a corpus of another is refused."""

SPLITS = ("train", "validation")

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json")

_AT_ONCE = 1 << 20

Description = dict[str, Any]


def read_description(directory: Path) -> Description:
    """What corpus.json says. Raises `UserError` where it is missing, of another version, or does not fit the files."""
    path = directory / "corpus.json"
    if not path.is_file():
        raise UserError(f"{directory} is not a corpus: it holds no corpus.json; make one with pretrain/prepare.py")
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        version, sizes = description["format"], description["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not the description of a corpus: {error!r}") from error
    if version != FORMAT:
        raise UserError(f"{path} has format {version}; expected {FORMAT}; make the corpus again")
    for name, size in sizes.items():
        found = (directory / name).stat().st_size if (directory / name).is_file() else 0
        if found != size:
            raise UserError(f"{directory / name} has {found} bytes; expected {size}; make the corpus again")
    return dict(description)


def write_description(directory: Path, description: Description) -> None:
    """Write corpus.json, with the version of the format and the sizes of the files of both parts."""
    paths = [path for split in SPLITS for path in token_files(directory, split, words=True) if path.exists()]
    files = {path.name: path.stat().st_size for path in paths}
    text = json.dumps({"format": FORMAT, **description, "files": files}, indent=2, ensure_ascii=False)
    (directory / "corpus.json").write_text(text + "\n", encoding="utf-8", newline="\n")


def find_corpus(output: Path, made_from: Description, *, overwrite: bool) -> Description | None:
    """The description of the corpus at `output` where it has just these entries; None where one is to be made.

    Raises `UserError` where something else is there, unless it is a corpus that may be overwritten.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    if not (output / "corpus.json").is_file():
        raise UserError(f"{output} is there already and is not a corpus; choose another output")
    try:
        found = read_description(output)
    except UserError as error:
        found, fault = {}, str(error)
    else:
        fault = f"{output} is there already, with other {_difference(found, made_from)}"
    if found and _difference(found, made_from) == "":
        return found
    if not overwrite:
        raise UserError(f"{fault}; choose another output, or set overwrite: true")
    return None


def tokenizer_digests(directory: str | None) -> dict[str, str]:
    """Sha256 of each file that `load_tokenizer` may read in `directory` or its subfolder `tokenizer`."""
    folders = (Path(directory), Path(directory) / "tokenizer") if directory else ()
    paths = [folder / name for folder in folders for name in _TOKENIZER_FILES]
    return {path.as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}


def fingerprint(vocabulary: bytes, settings: dict[str, Any], directory: Path, splits: Sequence[str] = SPLITS) -> str:
    """Sha256 over vocab.txt, the settings, and of each split the offsets, token ids and marks of words."""
    digest = hashlib.sha256(hashlib.sha256(vocabulary).digest())
    digest.update(json.dumps(settings, sort_keys=True).encode("utf-8"))
    for split in splits:
        store = open_tokens(directory, split)
        for offsets in (store.document_offsets, store.sentence_offsets):
            digest.update(len(offsets).to_bytes(8, "little"))
            for some in _portions(offsets):
                digest.update(some.data)
        for ids in read_tokens(directory, split):
            digest.update(ids.data)
        for some in _portions(store.word_bits) if store.word_bits is not None else ():
            digest.update(some.data)
    return digest.hexdigest()


def _difference(found: Description, wanted: Description) -> str:
    """Which entries differ, one level deep: "settings (vocab_size 100, not 200) and sources"."""
    differing = []
    for name, value in wanted.items():
        if (there := found.get(name, {})) != value:
            keys = [key for key in value if there.get(key) != value[key]] if name == "settings" else []
            changes = ", ".join(f"{key} {there.get(key)!r}, not {value[key]!r}" for key in keys)
            differing.append(f"{name} ({changes})" if changes else name)
    return " and ".join(differing)


def _portions(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    return (array[begin : begin + _AT_ONCE] for begin in range(0, len(array), _AT_ONCE))
