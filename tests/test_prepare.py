"""pretrain/prepare.py as a person runs it: options, messages, exit codes, and two runs at once."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from minibert import cli
from minibert.data.corpus import Corpus, PrepareConfig
from minibert.data.open_corpora import OPEN_CORPORA

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "pretrain" / "prepare.py"
TEXT = "Rain fell on the hills. The valley lay dry.\n\nNobody came. The road was long.\n\nÜber den Wolken. Sonne.\n"

# Python as on a machine that is not set to UTF-8; it tells of every text file that is opened without an encoding.
BARE = [sys.executable, "-X", "utf8=0", "-X", "warn_default_encoding", "-W", "always::EncodingWarning"]

Prepare = Callable[..., tuple[int, str, str]]


@pytest.fixture
def prepare(capsys: pytest.CaptureFixture[str]) -> Prepare:
    """Run the script's `main` with options: exit code, standard output, standard error."""
    spec = importlib.util.spec_from_file_location("prepare_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def run(*options: object) -> tuple[int, str, str]:
        code = 0
        try:
            cli.run(script.main, PrepareConfig, script.with_values([str(option) for option in options]))
        except SystemExit as stop:
            code = int(str(stop.code))
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def start(*options: object, **environment: str) -> "subprocess.Popen[str]":
    """Run the script as a process of its own, in a bare C locale and offline."""
    return subprocess.Popen(
        [*BARE, str(SCRIPT), *map(str, options)],
        cwd=ROOT,
        env={**os.environ, "LC_ALL": "C", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **environment},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def test_counts_warnings_and_fingerprint_are_printed_once(prepare: Prepare, source: Path, tmp_path: Path) -> None:
    code, out, err = prepare("--sources", f"[{source}]", "--output", tmp_path / "corpus", "--vocab_size", 97)
    description = json.loads((tmp_path / "corpus" / "corpus.json").read_text(encoding="utf-8"))
    sizes = description["counts"]["train"]
    assert code == 0
    assert f"train{sizes['documents']:>19,}{sizes['sentences']:>12,}{sizes['tokens']:>14,}\n" in out
    assert f"fingerprint {description['fingerprint']}\n" in out
    assert "no documents are held out" in description["warnings"][-1]
    assert all(err.count(f"warning: {warning}\n") == 1 for warning in description["warnings"])


def test_a_second_run_says_that_the_corpus_is_there(prepare: Prepare, source: Path, tmp_path: Path) -> None:
    options = "--sources", f"[{source}]", "--output", tmp_path / "corpus"
    first, second = prepare(*options), prepare(*options)
    assert first[0] == second[0] == 0
    assert "corpus: made\n" in first[1]
    assert "corpus: is there already, with these sources and settings\n" in second[1]
    assert "encoding\n" not in second[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sources", "[absent.txt]"], "absent.txt does not exist"),
        (["--sources", "*.csv"], "*.csv matches no file"),
        (["--sources", "[bad.txt]"], "bad.txt:2: byte 0xff at byte offset 5 is not UTF-8"),
        (["--sources", "[one.txt]"], "the sources hold one document only"),
        (["--sources", "[empty.txt]"], "the sources hold no words"),
        (["--sources", "[rows.jsonl]"], 'rows.jsonl:2 has no field "text"'),
        (["--sources", "[]"], "sources is empty"),
        (["--sources", "[one.txt]", "--vocabsize", "100"], "did you mean vocab_size?"),
        (["--sources", "[one.txt]", "--vocab_size", "0"], "vocab_size"),
        (["--sources", "[one.txt]", "--vocab_size", "3"], "vocab_size is 3"),
        (["--sources", "[one.txt]", "--validation_share", "1.5"], "validation_share"),
        (["--sources", "[one.txt]", "--encoding_errors", "ignore"], "encoding_errors"),
        (["--sources", "[one.txt]", "--tokenizer", "absent"], "absent"),
        (["--sources", "[one.txt]", "--shard", "4/3"], "shard is 4/3; expected i/n"),
        (["--sources", "[one.txt]", "--shard", "1/3", "--merge"], "expected one of the two"),
        (["--sources", "[one.txt]", "--merge"], "there is nothing to merge"),
        (["--sources", "[one.txt]", "--processes", "0"], "processes"),
    ],
)
def test_each_mistake_ends_with_code_2_and_one_line_and_leaves_nothing(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.txt").write_bytes(b"one\nb\xff\xfe\n\ntwo\n")
    (tmp_path / "one.txt").write_bytes(b"One.\nTwo.\nThree.\n")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "one"}\n{"txt": "two"}\n')
    before = sorted(tmp_path.iterdir())
    code, _, err = prepare(*options, "--output", "corpus")
    lines = [line for line in err.splitlines() if line != "counting words"]
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]
    assert sorted(tmp_path.iterdir()) == before


def test_sources_may_be_one_name_or_a_list_or_come_one_by_one(prepare: Prepare, source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("Another text.", encoding="utf-8")
    rest = "--validation_share", 0, "--output"
    for number, options in enumerate([[f"[{source}, {other}]"], ["*.txt"], [str(tmp_path / "*.txt")]]):
        with contextlib.chdir(tmp_path):
            assert prepare("--sources", *options, *rest, tmp_path / str(number))[0] == 0
    assert prepare("--sources+", source, "--sources+", other, *rest, tmp_path / "3")[0] == 0
    found = [Corpus.open(tmp_path / str(number), "train") for number in range(4)]
    assert all(len(corpus.document_offsets) == 1 + 4 for corpus in found)
    assert found[0].fingerprint == found[3].fingerprint  # in the given order
    assert found[1].fingerprint == found[2].fingerprint  # in sorted order


def test_the_configs_that_come_with_it_can_be_read() -> None:
    configs = {
        path.stem: cli.parse(PrepareConfig, ["--config", str(path)]) for path in ROOT.glob("configs/prepare/*.yaml")
    }
    assert configs.keys() >= {"demo", "english", "custom"}
    assert set(configs["demo"].sources) <= OPEN_CORPORA.keys()
    assert configs["demo"].output == "runs/demo/corpus"
    assert configs["english"].vocab_size == 16_384


def test_two_runs_at_once_in_a_bare_locale_end_with_one_whole_corpus(source: Path, tmp_path: Path) -> None:
    options = "--sources", f"[{source}]", "--output", tmp_path / "corpus", "--vocab_size", 97
    runs = [start(*options) for _ in range(2)]
    outputs = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert [_complaints_of_ours(err) for _, err in outputs] == [[], []]
    said = sorted(out.splitlines()[-2].partition("corpus: ")[2] for out, _ in outputs)
    assert said == ["is there already, with these sources and settings", "made"]
    fingerprint = Corpus.open(tmp_path / "corpus", "train").fingerprint
    assert all(out.endswith(f"fingerprint {fingerprint}\n") for out, _ in outputs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "text.txt"]


def test_shards_say_what_is_missing_and_a_bare_merge_puts_them_together(
    prepare: Prepare, source: Path, tmp_path: Path
) -> None:
    options = "--sources", f"[{source}]", "--output", tmp_path / "corpus", "--vocab_size", 97
    assert "missing yet: --shard 0/2\n" in prepare(*options, "--shard", "1/2")[1]
    code, _, err = prepare(*options, "--merge")
    assert (code, err) == (2, "error: 1 of 2 shards are missing or not complete: --shard 0/2; encode them first\n")
    assert "put them together: --merge\n" in prepare(*options, "--shard", "2/2")[1]
    code, out, err = prepare("--merge", *options)
    assert (code, err.partition("\n")[0]) == (0, "merging")
    assert "corpus: made\n" in out
    assert "is there already" in prepare(*options, "--shard", "2/2")[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "text.txt"]


def test_ctrl_c_ends_all_processes_at_once_and_the_same_command_goes_on(tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    texts = (f"Number {n} is here, {n * n} comes later. It is not {n + 1}." for n in range(31_013))
    source.write_text("\n\n".join(texts), encoding="utf-8")
    options = "--sources", f"[{source}]", "--output", tmp_path / "corpus", "--vocab_size", 97, "--processes", 2
    run = start(*options)
    assert run.stderr is not None
    while (line := run.stderr.readline()) != "encoding\n":
        assert line, "the run ended before it was interrupted"
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    _, err = run.communicate(timeout=60)
    assert (run.returncode, err.splitlines()[-1]) == (130, "error: interrupted")
    assert "Traceback" not in err
    assert not _processes_of(run.pid)
    assert {path.name for path in tmp_path.iterdir()} <= {"text.txt", ".corpus.work"}
    again = start(*options)
    assert again.communicate(timeout=120)[0].endswith("\n")
    assert again.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "text.txt"]


def _processes_of(group: int) -> list[int]:
    """The processes of a group, but for the dead that nobody has waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of_group = path.read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split(" ")[:3]
            if int(of_group) == group and state != "Z":
                found.append(int(path.parent.name))
    return found


def _complaints_of_ours(err: str) -> list[str]:
    ours = (str(ROOT / "minibert"), str(ROOT / "pretrain"))
    return [line for line in err.splitlines() if "EncodingWarning" in line and line.startswith(ours)]
