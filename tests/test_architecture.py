"""The house rules that a reader relies on: who imports whom, how files open, how text is read, what is documented."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import minibert

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = sorted((ROOT / "minibert").rglob("*.py"))
SCRIPTS = sorted(path for folder in ("pretrain", "finetune", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
BERT = {"model", "encoder", "heads", "embeddings", "attention", "config", "outputs"}
APPLICATIONS = {"cli", "inference", "pretraining", "report"}
FORBIDDEN = {
    **{part: {"data", "training", "adapters", *APPLICATIONS} for part in (*BERT, "objectives", "hf")},
    "data": {*BERT, "objectives", "hf", "training", "adapters", *APPLICATIONS},
    "training": {*BERT, "hf", "adapters", *APPLICATIONS},
    "adapters": {*BERT, "data", "training", *APPLICATIONS},
    "types": {*BERT, "objectives", "hf", "data", "training", "adapters", *APPLICATIONS},
    "errors": {*BERT, "objectives", "hf", "data", "training", "adapters", *APPLICATIONS, "types"},
    "cores": {*BERT, "objectives", "hf", "data", "training", "adapters", *APPLICATIONS},
    "files": {*BERT, "objectives", "hf", "data", "training", "adapters", *APPLICATIONS},
}
"""What a part of the library must not import.

Training counts with the sums of `objectives`, and adapters name weights as `hf` does. Neither is BERT code:
`test_the_bridges_to_training_and_adapters_hold_no_bert_code` sees to it.
"""

every_file = pytest.mark.parametrize("path", LIBRARY + SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
every_module = pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(ROOT)))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """The full name of each thing that a file imports, wherever in the file: `from a import b` is a.b."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide who imports whom"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(name: str) -> str:
    """The part of the library that a name lives in: minibert.data.pairs.plan_block is in `data`."""
    first = name.split(".")[1]
    if not (ROOT / "minibert" / first).is_dir() and not (ROOT / "minibert" / f"{first}.py").is_file():
        first = getattr(minibert, first).__module__.split(".")[1]  # a public name, such as minibert.BertConfig
    return first


def parts_imported(path: Path) -> set[str]:
    return {part(name) for name in imported(path) if name.startswith("minibert.")}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Each call in a file with the last part of the name that is called."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node


def test_the_library_and_the_scripts_are_found():
    names = {path.relative_to(ROOT).as_posix() for path in LIBRARY + SCRIPTS}
    assert {"minibert/model.py", "minibert/attention/scores.py", "pretrain/train.py", "finetune/train.py"} <= names


@every_module
def test_a_part_of_the_library_imports_none_that_it_must_not_know(path):
    inside = path.relative_to(ROOT / "minibert").with_suffix("").parts
    assert parts_imported(path) & FORBIDDEN.get(inside[0], set()) - {inside[0]} == set()


@every_module
def test_the_library_does_not_import_scripts_or_tests(path):
    assert {name.split(".")[0] for name in imported(path)} & {"pretrain", "finetune", "benchmarks", "tests"} == set()


def test_the_bridges_to_training_and_adapters_hold_no_bert_code():
    for bridge in ("hf", "objectives"):
        assert parts_imported(ROOT / "minibert" / f"{bridge}.py") <= {"errors"}


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("import minibert.data.pairs", {"data"}),
        ("from minibert import hf, BertModel, UserError", {"hf", "model", "errors"}),
        ("from minibert.attention import soft", {"attention"}),
        ("def f():\n    from minibert.training.loop import train", {"training"}),
        ("import torch", set()),
    ],
)
def test_imports_are_found_in_whatever_form_they_come(line, parts, tmp_path):
    (tmp_path / "module.py").write_text(line, encoding="utf-8")
    assert parts_imported(tmp_path / "module.py") == parts


@every_file
def test_a_file_opens_with_a_sentence_about_it(path):
    sentence = ast.get_docstring(tree(path))
    assert sentence or not path.read_text(encoding="utf-8")
    assert not sentence or re.match(r"[^\n]+[.!?:]", sentence)


@every_file
def test_no_file_imports_all_names_of_another(path):
    assert [name for name in imported(path) if name.endswith("*")] == []


@every_module
def test_every_public_name_has_a_docstring(path):
    def public(body):
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        return [node for node in body if isinstance(node, kinds) and not node.name.startswith("_")]

    top = public(tree(path).body)
    methods = [method for node in top if isinstance(node, ast.ClassDef) for method in public(node.body)]
    assert [node.name for node in top + methods if not ast.get_docstring(node)] == []


@pytest.mark.parametrize("name", minibert.__all__)
def test_everything_that_minibert_exports_says_what_it_is(name):
    exported = getattr(minibert, name)
    assert exported.__doc__
    assert not exported.__doc__.startswith(f"{name}("), "this is what a dataclass says that says nothing"


@every_file
def test_text_is_never_opened_without_an_encoding(path):
    assert [call.lineno for name, call in calls(path) if opens_text_anyhow(name, call)] == []


def opens_text_anyhow(name: str, call: ast.Call) -> bool:
    """Whether a call opens text in the encoding of the locale."""
    texts = [node.value for node in call.args if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    texts += [keyword.value.value for keyword in call.keywords if keyword.arg == "mode"]
    mode = next((text for text in texts if re.fullmatch("[rwaxbt+]{1,3}", text)), None)
    if "utf-8" in texts or "b" in (mode or "") or any(keyword.arg == "encoding" for keyword in call.keywords):
        return False
    if name == "open" and isinstance(call.func, ast.Attribute):  # path.open(), not archive.open(member)
        return mode is not None or not call.args
    return name in ("open", "fdopen", "read_text", "write_text", "TextIOWrapper")


@pytest.mark.parametrize(
    ("line", "is_wrong"),
    [
        ("open(x)", True),
        ("open(x, 'w')", True),
        ("x.open()", True),
        ("x.open('a', newline='')", True),
        ("gzip.open(x, mode='rt')", True),
        ("x.read_text()", True),
        ("x.write_text(text)", True),
        ("io.TextIOWrapper(x)", True),
        ("open(x, 'rb')", False),
        ("open(x, encoding='utf-8')", False),
        ("x.open('ab')", False),
        ("gzip.open(x, mode='rb')", False),
        ("archive.open(member)", False),
        ("Corpus.open(x, 'train')", False),
        ("x.read_text('utf-8')", False),
        ("x.write_text(text, encoding='utf-8')", False),
    ],
)
def test_calls_that_open_text_in_the_encoding_of_the_locale_are_told_from_others(line, is_wrong, tmp_path):
    (tmp_path / "module.py").write_text(line, encoding="utf-8")
    ((name, call),) = calls(tmp_path / "module.py")
    assert opens_text_anyhow(name, call) == is_wrong


@every_file
def test_lines_end_at_line_feeds_alone(path):
    assert [call.lineno for name, call in calls(path) if name == "splitlines"] == []


@every_file
def test_no_pickle_is_read_or_written_but_tensors_alone(path):
    pickles = {name for name in imported(path) if name.split(".")[0] in ("pickle", "dill", "cloudpickle", "joblib")}
    assert pickles <= {"pickle.UnpicklingError"}
    for name, call in calls(path):
        options = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
        if name == "load" and ast.unparse(call.func) == "torch.load":
            assert options.get("weights_only") is True, call.lineno
        assert not options.get("allow_pickle"), call.lineno
