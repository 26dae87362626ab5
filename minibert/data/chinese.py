"""Where does a Chinese word go on? Marks the tokens that continue a word, so that whole words can be masked.

    text         使用语言模型 to pretrain
    words        使用 | 语言 | 模型 | | to | | pretrain         as rjieba cuts them
    tokens       使  用  语  言  模  型  to  pre  ##train
    continues     0   1   0   1   0   1   0   0     1

BERT reads Chinese character by character (Cui et al. 2021, "Pre-Training With Whole Word Masking for Chinese BERT").
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from minibert.errors import UserError

Integers = npt.NDArray[np.int64]


def mark_words(sentences: Sequence[tuple[str, Encoding]]) -> npt.NDArray[np.bool_]:
    """[tokens of all sentences]: True at a token that continues the word of the token before it.

    A word is what `rjieba` cuts, be it Chinese, Latin or a number, and also what the tokenizer cut into pieces ("##").

    Args:
        sentences: texts, each with its encoding without special tokens, with offsets (`encode_batch` has them,
            `encode_batch_fast` has not). The first token of a sentence continues nothing.

    Raises:
        UserError: rjieba is not installed.
    """
    counts = [len(encoding) for _, encoding in sentences]
    sentence = np.repeat(np.arange(len(counts)), counts)
    word = _words_at([text for text, _ in sentences], sentence, _flat(_begins(encoding) for _, encoding in sentences))
    piece = _flat(encoding.word_ids for _, encoding in sentences)

    continues = np.zeros(len(sentence), dtype=bool)
    again = (word[1:] == word[:-1]) | (piece[1:] == piece[:-1])
    continues[1:] = again & (sentence[1:] == sentence[:-1])
    return continues


def word_cutter() -> Callable[[str], list[str]]:
    """The function that cuts a text into words, white space and punctuation; joined they give the text again.

    Raises `UserError` where rjieba is not installed: call it before long work begins.
    """
    try:
        cut: Callable[[str], list[str]] = importlib.import_module("rjieba").cut
    except ModuleNotFoundError:
        raise UserError("Chinese words are found by rjieba, which is not installed: pip install rjieba") from None
    return cut


def _words_at(texts: Sequence[str], sentence: Integers, begins: Integers) -> Integers:
    """[tokens]: the number of the word, counted through all texts, in which a token begins."""
    lengths = _flat(map(len, words) for words in map(word_cutter(), texts))
    word_of_character = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    first = np.append(0, ends)[sentence]
    return word_of_character[first + begins]


def _begins(encoding: Encoding) -> Iterable[int]:
    return (begin for begin, _ in encoding.offsets)


def _flat(parts: Iterable[Iterable[Any]]) -> Integers:
    return np.fromiter(chain.from_iterable(parts), dtype=np.int64)
