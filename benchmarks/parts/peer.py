"""What a user would pick instead: the data part of run_mlm.py, the language-modelling example of transformers.

    python benchmarks/parts/peer.py tokenize FOLDER TEXT TOKENIZER PROCESSES      load_dataset, map(tokenize)
    python benchmarks/parts/peer.py group FOLDER LENGTH PROCESSES                 map(group_texts)

As there, a fast tokenizer in batches of 1,000 documents, four columns, texts joined and cut into chunks of one length.
But no special tokens, so that the chunks hold as much text as they can.
"""

import argparse
import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets, load_dataset
from transformers import BertTokenizerFast

Columns = dict[str, list[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["tokenize", "group"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("rest", nargs="+")
    given = parser.parse_args()
    works: dict[str, Callable[..., None]] = {"tokenize": tokenize, "group": group}
    works[given.work](given.folder, *given.rest)


def tokenize(folder: Path, text: str, tokenizer: str, processes: str) -> None:
    rows = load_dataset("json", data_files=text, split="train", cache_dir=str(folder / "loaded"))
    fast = fast_tokenizer(Path(tokenizer))

    def ids(batch: Columns) -> Any:
        return fast(batch["text"], add_special_tokens=False, return_special_tokens_mask=True)

    rows.map(
        ids,
        batched=True,
        num_proc=int(processes),
        remove_columns=rows.column_names,
        cache_file_name=str(folder / "tokenized.arrow"),
    )


def group(folder: Path, length: str, processes: str) -> None:
    size = int(length)

    def chunks(batch: Columns) -> Columns:
        joined = {name: list(chain(*rows)) for name, rows in batch.items()}
        end = len(joined["input_ids"]) // size * size
        return {name: [values[i : i + size] for i in range(0, end, size)] for name, values in joined.items()}

    stored(folder, "tokenized").map(
        chunks, batched=True, num_proc=int(processes), cache_file_name=str(folder / f"grouped-{length}.arrow")
    )


def stored(folder: Path, name: str) -> Dataset:
    """What `tokenize` or `group` made: a file for each process."""
    return concatenate_datasets([Dataset.from_file(str(file)) for file in sorted(folder.glob(f"{name}*.arrow"))])


def fast_tokenizer(directory: Path) -> Any:
    """The tokenizer of transformers with the vocabulary of ours."""
    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    options = {
        name: config[name] for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars") if name in config
    }
    return BertTokenizerFast(vocab=str(directory / "vocab.txt"), **options)


if __name__ == "__main__":
    main()
