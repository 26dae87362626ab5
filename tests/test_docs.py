"""What the documents say is there is there: the tests that hold a promise, the files that are named, the options."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def named_tests(text: str) -> list[tuple[str, str]]:
    """(file, function) of each test in backquotes; a name without a file is in the file that was named last."""
    found, file = [], ""
    for name in re.findall(r"`(test_\w+\.py(?:::test_\w+)?|test_\w+)`", text):
        path, _, function = name.partition("::") if name.partition("::")[0].endswith(".py") else (file, "", name)
        file = path
        found.append((path, function))
    return found


def test_names_are_found_with_the_file_that_was_named_last():
    text = "`test_a.py::test_b`, `test_c` and `test_d.py`; `other`"
    assert named_tests(text) == [("test_a.py", "test_b"), ("test_a.py", "test_c"), ("test_d.py", "")]


@every_page
def test_each_test_that_a_page_names_is_there(page):
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    for file, function in named_tests(page.read_text(encoding="utf-8")):
        assert f"def {function}(" in files[file] if function else file in files, (file, function)


@every_page
def test_each_file_that_a_page_names_is_there(page):
    text = page.read_text(encoding="utf-8")
    names = re.findall(r"\b((?:configs|docs|minibert|pretrain|finetune|benchmarks)/[\w./-]+\.\w+)", text)
    assert [name for name in names if not (ROOT / name).exists()] == []
