"""From text to piece numbers and back: a WordPiece tokenizer as published BERT has it, trained on your text or loaded.

    tokenizer = train_tokenizer(texts, vocab_size=16_384)
    tokenizer.encode("Hello", "World!").tokens           [CLS] hello [SEP] world ! [SEP]
    tokenizer.encode("press [MASK] now").tokens          [CLS] press [ mask ] now [SEP]

Text is never read as a special token: a corpus that speaks of "[MASK]" must not mask anything. Where a text is meant to
hold masks, to have them filled in, set `tokenizer.encode_special_tokens = False`. A copy or a pickle of a tokenizer
forgets this choice; `transformers` reads special tokens in text unless it is called with `split_special_tokens=True`.
"""

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from minibert.data.wordpiece import CONTINUATION, LONGEST_WORD, count_chunks, learn_pieces, words_of
from minibert.errors import UserError
from minibert.types import PositiveInt

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Ids 0 to 4 of a vocabulary that is trained here; published vocabularies have them elsewhere."""


@dataclass(frozen=True)
class TokenizerSettings:
    """What `train_tokenizer` is to make of a text."""

    vocab_size: PositiveInt = 30_522
    """Number of entries, never exceeded; fewer where the text does not give as many."""
    lowercase: bool = True
    """Whether upper case becomes lower case."""
    strip_accents: bool | None = None
    """Whether accents are removed; null: as `lowercase` says, which is what published BERT does."""
    min_frequency: PositiveInt = 2
    """Pieces seen together less often than this are not merged."""
    limit_alphabet: PositiveInt | None = None
    """At most this many pieces of a single character; null: as many as the vocabulary has room for."""

    def __post_init__(self) -> None:
        if self.vocab_size <= len(SPECIAL_TOKENS):
            raise UserError(
                f"vocab_size is {self.vocab_size}, expected more than the {len(SPECIAL_TOKENS)} special tokens"
            )


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What batches need to know of a tokenizer: its size, the special tokens, and what continues a word."""

    size: int
    """Number of ids, from 0: the rows that an embedding matrix needs."""
    pad: int
    unk: int
    cls: int
    sep: int
    mask: int
    special: npt.NDArray[np.bool_]
    """[size], True at special tokens."""
    continuation: npt.NDArray[np.bool_]
    """[size], True at the pieces that continue a word, such as "##ing"."""


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    min_frequency: int = 2,
    limit_alphabet: int | None = None,
) -> Tokenizer:
    """Learn a vocabulary; the arguments are those of `TokenizerSettings`. Equal texts and settings give equal bytes.

    The texts are read once; in what order they come, and where they are cut at white space, makes no difference. Warns
    where characters fall to [UNK], and where there are fewer entries than asked. Raises UserError if there is no word.
    """
    settings = TokenizerSettings(vocab_size, lowercase, strip_accents, min_frequency, limit_alphabet)
    if isinstance(texts, str):
        raise UserError("texts is one string, expected several: a list of strings, or another iterable")
    return train_on_chunks(count_chunks(texts), settings)


def train_on_chunks(chunks: Mapping[str, int], settings: TokenizerSettings) -> Tokenizer:
    """`train_tokenizer` for texts whose chunks `wordpiece.count_chunks` has counted, perhaps in several processes."""
    normalizer = normalizers.BertNormalizer(lowercase=settings.lowercase, strip_accents=settings.strip_accents)
    words = words_of(chunks, normalizer=normalizer, pre_tokenizer=pre_tokenizers.BertPreTokenizer())
    if not words:
        raise UserError("there is no word in the texts to train a tokenizer on")
    room, asked = settings.vocab_size - len(SPECIAL_TOKENS), settings.vocab_size
    pieces = learn_pieces(
        words, size=room, min_frequency=settings.min_frequency, limit_alphabet=settings.limit_alphabet
    )
    entries = [*SPECIAL_TOKENS, *pieces]
    if len(entries) < asked:
        warnings.warn(f"the texts give {len(entries)} vocabulary entries, {asked} were asked for", stacklevel=3)
    return _with_special_tokens(_bert_tokenizer(entries, normalizer))


def save_tokenizer(tokenizer: Tokenizer, directory: str | Path, *, model_max_length: int = 512) -> None:
    """Write tokenizer.json, vocab.txt and tokenizer_config.json, for `load_tokenizer` and `transformers.AutoTokenizer`.

    Line n of vocab.txt, counted from 0, is the piece with id n; only a line feed ends it. `model_max_length` is the
    number of positions that the model has.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = tokenizer.get_vocab(with_added_tokens=False)
    entries = "".join(f"{piece}\n" for piece in sorted(ids, key=ids.__getitem__))
    (folder / "vocab.txt").write_text(entries, encoding="utf-8", newline="\n")
    config = json.dumps({**_transformers_config(tokenizer), "model_max_length": model_max_length}, indent=2)
    (folder / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8", newline="\n")


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """Read a tokenizer of ours, a published one, or that of a corpus, which is in its subfolder `tokenizer`.

    Without tokenizer.json, vocab.txt and tokenizer_config.json do (`do_lower_case`, `strip_accents`,
    `tokenize_chinese_chars`). Padding and truncation that a published file asks for are switched off.
    Raises UserError that names the file which is missing, broken, or without a special token.
    """
    for folder in (Path(directory), Path(directory) / "tokenizer"):
        if (path := folder / "tokenizer.json").is_file():
            return _ready(_read_tokenizer(path), path)
        if (path := folder / "vocab.txt").is_file():
            return _ready(_bert_tokenizer(_read_entries(path), _read_normalizer(folder)), path)
    raise UserError(f"{directory}: there is no tokenizer here, expected tokenizer.json or vocab.txt")


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Describe the tokenizer's vocabulary. Raises UserError that names the special tokens it lacks."""
    pad, unk, cls, sep, mask = special_ids = _special_ids(tokenizer)
    ids = tokenizer.get_vocab()
    special, continuation = np.zeros((2, 1 + max(ids.values())), dtype=np.bool_)
    special[special_ids] = True
    special[[id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special]] = True
    continuation[[id_ for piece, id_ in ids.items() if piece.startswith(CONTINUATION)]] = True
    return Vocabulary(len(special), pad, unk, cls, sep, mask, special=special, continuation=continuation)


def _bert_tokenizer(entries: list[str], normalizer: normalizers.Normalizer) -> Tokenizer:
    ids = {piece: id_ for id_, piece in enumerate(entries)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return tokenizer


def _with_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Put them around a text or a pair, and never find them inside: [CLS] A [SEP] B [SEP], token types 0 and 1."""
    _, _, cls, sep, _ = _special_ids(tokenizer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.encode_special_tokens = True
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    return tokenizer


def _special_ids(tokenizer: Tokenizer) -> list[int]:
    ids = tokenizer.get_vocab()
    if missing := [token for token in SPECIAL_TOKENS if token not in ids]:
        raise UserError(f"the vocabulary lacks {', '.join(missing)}, expected all of {', '.join(SPECIAL_TOKENS)}")
    return [ids[token] for token in SPECIAL_TOKENS]


def _transformers_config(tokenizer: Tokenizer) -> dict[str, object]:
    """What `transformers` needs beside tokenizer.json: the class, and what this class takes from here instead."""
    names = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS}
    normalizer = tokenizer.normalizer
    if not isinstance(normalizer, normalizers.BertNormalizer) or not normalizer.clean_text:
        return {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": normalizer.lowercase,
        "strip_accents": normalizer.strip_accents,
        "tokenize_chinese_chars": normalizer.handle_chinese_chars,
        **names,
    }


def _ready(tokenizer: Tokenizer, path: Path) -> Tokenizer:
    """The tokenizer that was read from `path`, as `train_tokenizer` would give it."""
    try:
        tokenizer = _with_special_tokens(tokenizer)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if (entries := tokenizer.get_vocab_size()) != (rows := vocabulary(tokenizer).size):
        raise UserError(f"{path}: {entries} entries have ids up to {rows - 1}, expected each id from 0 once")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{path}: expected a tokenizer as the library tokenizers saves it ({error})") from None


def _read_entries(path: Path) -> list[str]:
    """The entries of a vocab.txt. Only a line feed ends one: U+2028, where `str.splitlines` breaks, may be in it."""
    entries = _read_text(path).removesuffix("\n").split("\n")
    if all(entry.endswith("\r") for entry in entries):  # written on Windows
        entries = [entry.removesuffix("\r") for entry in entries]
    lines: dict[str, int] = {}
    for line, entry in enumerate(entries, start=1):
        if lines.setdefault(entry, line) != line:
            raise UserError(f"{path}:{line}: {entry!r} stands in line {lines[entry]} too, expected each entry once")
    return entries


def _read_normalizer(folder: Path) -> normalizers.Normalizer:
    """BERT's normalizer with the choices of tokenizer_config.json, or else those of uncased BERT."""
    path = folder / "tokenizer_config.json"
    config = _read_object(path) if path.is_file() else {}

    def choice(name: str, default: bool | None) -> Any:
        value = config.get(name, default)
        if not isinstance(value, bool) and value is not default:
            raise UserError(f"{path}: {name} is {json.dumps(value)}, expected true or false")
        return value

    return normalizers.BertNormalizer(
        lowercase=choice("do_lower_case", True),
        strip_accents=choice("strip_accents", None),
        handle_chinese_chars=choice("tokenize_chinese_chars", True),
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: expected JSON ({error.msg})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object")
    return content


def _read_text(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: byte {error.start} is not UTF-8") from None
