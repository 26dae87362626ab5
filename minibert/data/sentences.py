"""Where does a sentence end? Asks `sentencex`, which knows the abbreviations of some 300 languages."""

from collections.abc import Iterator

import sentencex

LONG = 1000
"""Characters above which a sentence is looked at again, without its quotation marks and brackets."""

_BLANKED = str.maketrans(dict.fromkeys('"“”„«»‘’()[]{}「」『』（）', " "))


def split_sentences(text: str, language: str) -> Iterator[str]:
    """The sentences of each line of `text` in order; joined, those of a line give the line again."""
    for paragraph in text.split("\n"):
        for sentence in sentencex.segment(language, paragraph):
            if len(sentence) > LONG:
                yield from _split_inside_marks(sentence, language)
            else:
                yield sentence


def _split_inside_marks(sentence: str, language: str) -> Iterator[str]:
    """What stands in marks is kept whole, so that one without a partner may swallow a speech: split it regardless."""
    end = 0
    for part in sentencex.segment(language, sentence.translate(_BLANKED)):
        begin, end = end, end + len(part)
        yield sentence[begin:end]
