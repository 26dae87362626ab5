"""How fast and how well is a vocabulary trained, beside the trainer of the library `tokenizers`?

    python benchmarks/tokenizer.py [FILE ...] [--vocab_size 16384]

Files are JSON lines with a field "text" (.jsonl, .jsonl.gz) or plain text; without any, the English text of ../shared
is read. Every 20th text is held out, and "pieces a word" is counted there: of two vocabularies of one size the better
has fewer. Each trainer runs twice; "repeatable" says whether it gave the same pieces the same ids.
"""

import argparse
import gzip
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from minibert.data.tokenizer import SPECIAL_TOKENS, train_tokenizer

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "text"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--vocab_size", type=int, default=16_384)
    given = parser.parse_args()
    files = given.files or [SHARED / "general_en.jsonl.gz", SHARED / "imdb_train_en.jsonl.gz"]
    texts = [text for file in files for text in read(file)]
    held_out = texts[::20]
    del texts[::20]
    print(f"{sum(map(len, texts)) / 1e6:.1f} million characters, {given.vocab_size} entries")
    print(f"{'':10} {'seconds':>8} {'pieces a word':>14} {'[UNK]':>8} {'entries':>8} {'repeatable':>11}")
    for name, train in {"minibert": train_tokenizer, "tokenizers": train_with_library}.items():
        report(name, lambda train=train: train(texts, vocab_size=given.vocab_size), held_out)


def report(name: str, train: Callable[[], Tokenizer], held_out: list[str]) -> None:
    start = time.perf_counter()
    tokenizer = train()
    seconds = time.perf_counter() - start
    encodings = tokenizer.encode_batch(held_out, add_special_tokens=False)
    pieces = [piece for encoding in encodings for piece in encoding.tokens]
    words = sum(not piece.startswith("##") for piece in pieces)
    repeatable = "yes" if train().get_vocab() == tokenizer.get_vocab() else "no"
    print(
        f"{name:10} {seconds:8.1f} {len(pieces) / words:14.4f} {pieces.count('[UNK]') / len(pieces):8.4%} "
        f"{tokenizer.get_vocab_size():8} {repeatable:>11}"
    )


def train_with_library(texts: list[str], *, vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return tokenizer


def read(file: Path) -> Iterator[str]:
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"] if ".jsonl" in file.suffixes else line


if __name__ == "__main__":
    main()
