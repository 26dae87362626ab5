"""What the user got wrong becomes one line and exit code 2; what they got right becomes one frozen dataclass."""

import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from minibert import BertConfig, UserError, cli
from minibert.types import NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval


@dataclass(frozen=True)
class Decay:
    """How the rate falls."""

    kind: Literal["linear", "cosine"] = "linear"
    """The curve."""
    updates: NonNegativeInt = 17
    """How long it takes."""


@dataclass(frozen=True)
class Optimizer:
    """How weights change."""

    learning_rate: PositiveFloat = 1e-3
    """The largest step, η."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the two averages."""
    decay: Decay = field(default_factory=Decay)
    """The schedule"""


@dataclass(frozen=True)
class Run:
    """Train something."""

    corpus: str
    """Where the text is."""
    sources: list[str] = field(default_factory=list)
    """Where more text is."""
    output: Path = Path("runs/x")
    """Where the results go."""
    steps: PositiveInt = 7
    """Number of updates."""
    share: UnitInterval = 0.15
    """How many tokens are masked."""
    fast: bool = False
    """Whether it is fast."""
    name: str | None = None
    """A name for it."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    """The optimizer"""
    model: BertConfig = field(default_factory=BertConfig)
    """The model"""


def write(directory: Path, text: str, encoding: str = "utf-8") -> str:
    path = directory / "run.yaml"
    path.write_text(text, encoding=encoding)
    return str(path)


def refusal(capsys, argv: list[str]) -> str:
    """The one line that is printed for these arguments; the run must end with exit code 2 before it begins."""
    with pytest.raises(SystemExit) as ended:
        cli.run(lambda config: pytest.fail("the run began"), Run, argv)
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert printed.out == ""
    assert printed.err.endswith("\n")
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("error: ")
    return printed.err


def test_defaults_give_way_to_the_file_and_the_file_to_options_wherever_they_stand(tmp_path):
    file = write(tmp_path, "corpus: a\nsteps: 5\noptimizer:\n  learning_rate: 0.5\n  decay: {kind: cosine}\n")
    given = Run(corpus="a", steps=3, optimizer=Optimizer(learning_rate=0.5, decay=Decay(kind="cosine")))
    assert cli.parse(Run, ["--config", file, "--steps", "3"]) == given
    assert cli.parse(Run, ["--steps=3", f"--config={file}"]) == given


def test_of_two_files_the_later_wins(tmp_path):
    (tmp_path / "first.yaml").write_text("corpus: a\nsteps: 5\nshare: 0.5\n", encoding="utf-8")
    (tmp_path / "second.yaml").write_text("steps: 11\n", encoding="utf-8")
    files = ["--config", str(tmp_path / "first.yaml"), "--config", str(tmp_path / "second.yaml")]
    assert cli.parse(Run, files) == Run(corpus="a", steps=11, share=0.5)


@pytest.mark.parametrize("number", ["1e-4", "1E-4", "1.0e-4", "0.0001", "1e-04"])
def test_one_e_minus_four_is_a_number_in_a_file_and_on_the_command_line(number, tmp_path):
    file = write(tmp_path, f"corpus: a\noptimizer: {{learning_rate: {number}, betas: [{number}, 5e-1]}}\n")
    for argv in (
        ["--config", file],
        ["--corpus=a", f"--optimizer.learning_rate={number}", f"--optimizer.betas=[{number}, 5e-1]"],
    ):
        optimizer = cli.parse(Run, argv).optimizer
        assert optimizer.learning_rate == 1e-4
        assert optimizer.betas == (1e-4, 0.5)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--optimizer.learning_rte=3", "did you mean optimizer.learning_rate?"),
        ("--optimiser.learning_rate=3", "did you mean optimizer.learning_rate?"),
        ("--optimizer.decay.knid=linear", "did you mean optimizer.decay.kind?"),
        ("--stepss=3", "did you mean steps?"),
        ("--step=3", "did you mean steps?"),
        ("--conf=x", "did you mean config?"),
        ("stray", "unrecognized arguments: stray"),
        ("--steps", "steps: expected one argument"),
        ("--config", "config: expected one argument"),
        ("--steps=0", "steps: expected a value v with v>0, got 0"),
        ("--steps=2.5", "steps: expected a positive whole number, got 2.5"),
        ("--steps=many", "steps: expected a positive whole number, got many"),
        ("--share=1.5", "share: expected a value v with v>=0 and v<=1, got 1.5"),
        ("--optimizer.learning_rate=nan", "optimizer.learning_rate: expected a value v with v>0, got nan"),
        ("--optimizer.learning_rate=fast", "optimizer.learning_rate: "),
        ("--optimizer.decay.updates=-1", "optimizer.decay.updates: expected a value v with v>=0, got -1"),
        ("--optimizer.decay.kind=square", "optimizer.decay.kind: Expected one of 'linear', 'cosine'"),
        ("--optimizer.betas=3", "optimizer.betas: "),
        ("--optimizer=3", "optimizer: "),
        ("--optimizer.decay=3", "optimizer.decay: "),
        ("--fast=perhaps", "fast: Expected a bool"),
        ("--sources=a", "sources: Expected a list"),
        ("--model.hidden_size=13", "num_attention_heads: 12 heads do not divide a hidden_size of 13"),
        ("--model.pad_token_id=30522", "pad_token_id: expected less than a vocab_size of 30522, got 30522"),
        ("--model.attention.score=dott", "model.attention.score: Expected one of"),
        ("--config=absent.yaml", "config: absent.yaml: expected a YAML file in UTF-8 (No such file or directory)"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_with_its_path_and_what_was_expected(option, message, capsys):
    assert message in refusal(capsys, ["--corpus=a", option])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer: {learning_rte: 1.0e-3}", "'learning_rte' (did you mean optimizer.learning_rate?)"),
        ("optimizer: {decay: {knid: linear}}", "(did you mean optimizer.decay.kind?)"),
        ("stepss: 3", "'stepss' is not accepted (did you mean steps?)"),
        ("model: {attention: {scoer: dot}}", "(did you mean model.attention.score?)"),
        ("steps: 0", "steps: expected a value v with v>0, got 0"),
        ("steps: many", "steps: expected a positive whole number, got many"),
        ("steps: [1]", "steps: "),
        ("steps: null", "steps: "),
        ("share: -1", "share: expected a value v with v>=0 and v<=1, got -1"),
        ("optimizer: 3", "run.yaml: optimizer: expected a group of fields, got 3"),
        ("optimizer:", "run.yaml: optimizer: expected a group of fields, got None"),
        ("optimizer: {decay: linear}", "run.yaml: optimizer.decay: expected a group of fields, got 'linear'"),
        ("optimizer: {decay: {kind: square}}", "optimizer.decay.kind: Expected one of 'linear', 'cosine'"),
        ("model: {attention: soft}", "run.yaml: model.attention: expected a group of fields, got 'soft'"),
        ("model: {hidden_size: 13}", "num_attention_heads: 12 heads do not divide a hidden_size of 13"),
        ("name: 3", "name: "),
        ("3: x", "3"),
        ("steps: [1", "run.yaml: expected a YAML file in UTF-8"),
        ("steps: 3\n\tshare: 1", "run.yaml: expected a YAML file in UTF-8"),
        ("- 1\n- 2", "run.yaml: expected fields and their values, got [1, 2]"),
        ("hello", "run.yaml: expected fields and their values, got 'hello'"),
        ("", "run.yaml: expected fields and their values, got None"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_with_its_path_and_what_was_expected(text, message, capsys, tmp_path):
    assert message in refusal(capsys, ["--corpus=a", "--config", write(tmp_path, text)])


def test_a_file_that_is_not_utf_8_or_a_directory_is_refused_by_name(capsys, tmp_path):
    file = write(tmp_path, "corpus: größe", encoding="latin-1")
    assert "run.yaml: expected a YAML file in UTF-8 ('utf-8' codec can't decode" in refusal(capsys, ["--config", file])
    assert f"{tmp_path}: expected a YAML file" in refusal(capsys, ["--config", str(tmp_path)])


def test_a_field_without_a_default_must_be_given(capsys):
    assert "corpus" in refusal(capsys, [])


EXAMPLES = [
    Run(corpus="a"),
    Run(corpus="größe, 1e-4: #", sources=["x", "y z"], output=Path("a b/c"), share=1e-7, fast=True, name="a: b"),
    Run(corpus="1e5", name="3", optimizer=Optimizer(1e-5, (0.5, 1e-9), Decay("cosine", 0))),
    Run(corpus="a", model=BertConfig(id2label={0: "a", 1: "ü"}, classifier_dropout=0.5, layer_norm_eps=1e-12)),
]


@pytest.mark.parametrize("config", EXAMPLES, ids=range(len(EXAMPLES)))
def test_a_resolved_config_as_yaml_is_read_back_to_an_equal_one(config, tmp_path):
    assert cli.parse(Run, ["--config", write(tmp_path, cli.to_yaml(config))]) == config


def test_help_names_every_field_with_its_sentence(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.run(lambda config: None, Run, ["--help"])
    assert ended.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    fields = {
        "--": ["corpus", "sources", "output", "steps", "share", "fast", "name", "config"],
        "--optimizer.": ["learning_rate", "betas"],
        "--optimizer.decay.": ["kind", "updates"],
        "--model.": [f.name for f in dataclasses.fields(BertConfig)],
        "--model.attention.": ["score", "weights", "window", "global_tokens"],
    }
    assert [name for group, names in fields.items() for name in names if f"{group}{name} " not in printed] == []
    for sentence in (
        "Train something.",
        "Where the text is.",
        "The largest step, η.",
        "The curve.",
        "Width H of the encoder.",
    ):
        assert sentence in printed


def test_main_gets_the_config_and_ends_without_a_word(capsys):
    seen = []
    cli.run(seen.append, Run, ["--corpus", "a", "--steps", "3"])
    assert seen == [Run(corpus="a", steps=3)]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("rank", "start"), [(None, "error: "), ("0", "error: "), ("3", "error on process 3: ")])
def test_a_user_error_in_main_is_one_line_that_says_on_which_process(rank, start, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    if rank:
        monkeypatch.setenv("RANK", rank)

    def main(config):
        raise UserError("notes.txt:3: expected text,\n   got a picture")

    with pytest.raises(SystemExit) as ended:
        cli.run(main, Run, ["--corpus", "a"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{start}notes.txt:3: expected text, got a picture\n"


def test_an_error_of_ours_keeps_its_type_and_its_traceback():
    def main(config):
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug") as caught:
        cli.run(main, Run, ["--corpus", "a"])
    assert caught.traceback[-1].name == "main"


def test_an_interrupt_ends_with_130_and_one_line(capsys):
    def main(config):
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        cli.run(main, Run, ["--corpus", "a"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "error: interrupted\n"


SCRIPT = '''
import sys, warnings
from dataclasses import dataclass
from pathlib import Path
from minibert import BertConfig, BertForSequenceClassification, UserError, cli
warnings.simplefilter("error", EncodingWarning)  # not before: a library that torch imports opens a file as it likes

@dataclass(frozen=True)
class Run:
    """Über alles."""
    corpus: str
    """Größe η."""

def main(config):
    tiny = BertConfig(7, 6, 1, 2, 5, id2label={0: "größer", 1: "好"})
    BertForSequenceClassification(tiny).save_pretrained("model")
    print(BertForSequenceClassification.from_pretrained("model").config.id2label)
    print(cli.to_yaml(config))
    raise (UserError if config.corpus == "größe" else RuntimeError)("好")

cli.run(main, Run)
'''


@pytest.fixture
def in_ascii_locale(tmp_path):
    """Runs the script above where the locale knows ASCII only and opening text without an encoding fails."""
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "run.yaml").write_text("corpus: größe\n", encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONWARNDEFAULTENCODING": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "ignore", "script.py", *arguments],
            cwd=tmp_path,
            env=os.environ | ascii_only,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    return run


def test_files_are_utf_8_whatever_the_locale_and_output_is_escaped_where_it_lacks_a_letter(in_ascii_locale):
    ended = in_ascii_locale("--config", "run.yaml")
    assert ended.returncode == 2
    assert ended.stderr == "error: \\u597d\n"
    assert "gr\\xf6\\xdfer" in ended.stdout
    assert "corpus: gr\\xf6\\xdfe" in ended.stdout
    helped = in_ascii_locale("--help")
    assert helped.returncode == 0
    assert "Gr\\xf6\\xdfe \\u03b7." in helped.stdout


def test_an_error_of_ours_ends_a_process_with_1_and_a_traceback(in_ascii_locale):
    ended = in_ascii_locale("--corpus", "other")
    assert ended.returncode == 1
    assert ended.stderr.startswith("Traceback (most recent call last)")
    assert "RuntimeError" in ended.stderr
