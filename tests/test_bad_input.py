"""What a user gets wrong ends with code 2 and one line that says where and what was expected, and leaves nothing."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import processes
import pytest
import small
from processes import FINETUNE, PREDICT, PREPARE, PRETRAIN, Ended

from minibert.data.corpus import PrepareConfig, build_corpus


@dataclass(frozen=True)
class Place:
    """A folder to make mistakes in, which knows what was in it before."""

    folder: Path
    corpus: Path
    model: Path

    def path(self, name: str) -> Path:
        return self.folder / name

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.path(name)
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        return path

    def tree(self) -> dict[str, int | None]:
        """Every file with its time, every folder."""
        paths = self.folder.rglob("*")
        return {str(path): path.stat().st_mtime_ns if path.is_file() else None for path in paths}

    def copied_run(self) -> Path:
        return Path(shutil.copytree(self.model.parent, self.path("run"), symlinks=True))

    def prepare(self, *options: str) -> Ended:
        return self._run(PREPARE, f"--output={self.path('out')}", *options)

    def pretrain(self, *options: str) -> Ended:
        defaults = [f"--corpus={self.corpus}", f"--output={self.path('out')}", *small.PRETRAINING]
        return self._run(PRETRAIN, *defaults, *options)

    def finetune(self, *options: str) -> Ended:
        rows = small.write_rows(self.path("rows.jsonl"), small.rows(0, 7))
        tasks = [f"--task.train={rows}", f"--task.validation={rows}", "--task.max_length=31"]
        return self._run(FINETUNE, f"--model={self.model}", *tasks, f"--output={self.path('out')}", *options)

    def predict(self, *options: str) -> Ended:
        rows = small.write_rows(self.path("rows.jsonl"), small.rows(0, 7))
        output = self.path("predictions.jsonl")
        return self._run(PREDICT, f"--model={self.model}", f"--input={rows}", f"--output={output}", *options)

    def _run(self, script: Path, *options: str) -> Ended:
        before = self.tree()
        ended = processes.run(script, *options, said=self.folder.parent / "said")
        assert self.tree() == before, "something was left behind"
        return ended


@pytest.fixture
def place(tmp_path: Path, corpus: Path, pretrained: Path) -> Place:
    (tmp_path / "place").mkdir()
    return Place(tmp_path / "place", corpus, pretrained / "last")


def damaged(place: Place) -> Path:
    """A model whose weights were cut short."""
    model = Path(shutil.copytree(place.model, place.path("model")))
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return model


def without(place: Place, name: str) -> Path:
    model = Path(shutil.copytree(place.model, place.path("model")))
    (model / name).unlink()
    return model


def rows(place: Place, *lines: str) -> str:
    """Rows of a task with these lines after two good ones."""
    good = ['{"text": "the red river", "label": "bright"}', '{"text": "the cold river", "label": "dark"}']
    return str(place.write("given.jsonl", "".join(f"{line}\n" for line in [*good, *lines])))


def all_damaged(place: Place) -> str:
    run = place.copied_run()
    for weights in run.glob("step-*/model.safetensors"):
        weights.write_bytes(b"cut")
    return str(run)


def other_corpus(place: Place) -> str:
    text = small.write_text(place.path("text.txt"), seed=1, count=17)
    output = str(place.path("other"))
    build_corpus(PrepareConfig(sources=[str(text)], output=output, tokenizer=str(place.corpus), validation_share=0.2))
    return output


def cut_corpus(place: Place) -> str:
    copy = Path(shutil.copytree(place.corpus, place.path("cut")))
    (copy / "train.arrow").write_bytes((copy / "train.arrow").read_bytes()[:-50])
    return str(copy)


def unwritable(place: Place) -> str:
    """Where nothing can be made: a closed folder, or for one who may write everywhere the system's own."""
    folder = place.path("closed")
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK) and not Path("/proc/self").exists():
        pytest.skip("this user may write everywhere")
    return "/proc/closed/run" if os.access(folder, os.W_OK) else str(folder / "run")


Act = Callable[[Place], Ended]

PREPARING: dict[str, tuple[Act, str]] = {
    "missing file": (lambda p: p.prepare("--sources=[absent.txt]"), "absent.txt does not exist; expected a file"),
    "empty corpus": (
        lambda p: p.prepare(f"--sources=[{p.write('empty.txt', '')}]"),
        "the sources hold no words (0 documents); expected text",
    ),
    "one document": (
        lambda p: p.prepare(f"--sources=[{p.write('one.txt', 'One. Two.' + chr(10))}]"),
        "the sources hold one document only",
    ),
    "not UTF-8": (
        lambda p: p.prepare(f"--sources=[{p.write('bytes.txt', b'good' + bytes([10, 10, 255, 254, 10]))}]"),
        "bytes.txt:3: byte 0xff at byte offset 6 is not UTF-8",
    ),
    "JSON without text": (
        lambda p: p.prepare(f"--sources=[{p.write('rows.jsonl', json.dumps({'body': 'x'}))}]"),
        'rows.jsonl:1 has no field "text" (its fields: body); set text_field',
    ),
    "broken JSON": (
        lambda p: p.prepare(f"--sources=[{p.write('rows.jsonl', '{')}]"),
        "rows.jsonl:1 is not JSON",
    ),
    "misspelt option": (
        lambda p: p.prepare("--sources=[x]", "--vocabulary_size=97"),
        "vocabulary_size=97 (did you mean vocab_size?)",
    ),
    "out of range": (
        lambda p: p.prepare("--sources=[x]", "--validation_share=1.5"),
        "validation_share: expected a value v with v>=0 and v<=1, got 1.5",
    ),
    "output is a file": (
        lambda p: p.prepare(f"--sources=[{small.write_text(p.path('t.txt'))}]", f"--output={p.write('file', 'x')}"),
        "file is there already and is not a corpus; choose another output",
    ),
    "output under a file": (
        lambda p: p.prepare(f"--sources=[{small.write_text(p.path('t.txt'))}]", f"--output={p.write('file', 'x')}/out"),
        "file is no folder that you may write to",
    ),
    "unwritable": (
        lambda p: p.prepare(f"--sources=[{small.write_text(p.path('t.txt'))}]", f"--output={unwritable(p)}"),
        "cannot ",
    ),
    "no config file": (lambda p: p.prepare("--config=absent.yaml"), "absent.yaml: expected a YAML file in UTF-8"),
    "no sources": (lambda p: p.prepare(), "sources"),
}

PRETRAINING: dict[str, tuple[Act, str]] = {
    "no corpus": (lambda p: p.pretrain(f"--corpus={p.folder}"), "place is not a corpus: it holds no corpus.json"),
    "absent corpus": (lambda p: p.pretrain("--corpus=absent"), "absent is not a corpus: it holds no corpus.json"),
    "cut corpus": (lambda p: p.pretrain(f"--corpus={cut_corpus(p)}"), "train.arrow has "),
    "no config file": (lambda p: p.pretrain("--config=absent.yaml"), "absent.yaml: expected a YAML file in UTF-8"),
    "misspelt option": (
        lambda p: p.pretrain("--optimizer.learning_rte=1e-3"),
        "did you mean optimizer.learning_rate?",
    ),
    "misspelt field": (
        lambda p: p.pretrain(f"--config={p.write('c.yaml', 'training: {batchsize: 7}')}"),
        "did you mean training.batch_size?",
    ),
    "a group as a number": (
        lambda p: p.pretrain(f"--config={p.write('c.yaml', 'training: 3')}"),
        "c.yaml: training: expected a group of fields, got 3",
    ),
    "no number": (
        lambda p: p.pretrain(f"--config={p.write('c.yaml', 'optimizer: {learning_rate: fast}')}"),
        "optimizer.learning_rate",
    ),
    "out of range": (
        lambda p: p.pretrain("--masking.probability=1.5"),
        "masking.probability: expected a value v with v>=0 and v<=1, got 1.5",
    ),
    "no steps": (lambda p: p.pretrain("--training.steps=0"), "training.steps: expected a value v with v>0, got 0"),
    "no choice": (lambda p: p.pretrain("--schedule.kind=step"), "schedule.kind"),
    "heads": (lambda p: p.pretrain("--model.num_attention_heads=5"), "5 heads do not divide a hidden_size of 32"),
    "shares": (lambda p: p.pretrain("--masking.random_share=0.3"), "mask_share 0.8 and random_share 0.3 are more"),
    "longer than the positions": (
        lambda p: p.pretrain("--pairs.max_length=49"),
        "pairs.max_length: 49 is more than model.max_position_embeddings, 48",
    ),
    "too short": (lambda p: p.pretrain("--pairs.max_length=4"), "max_length is 4"),
    "vocabulary larger than the embeddings": (
        lambda p: p.pretrain("--model.vocab_size=130"),
        "model.vocab_size: 130 is less than the 131 entries of the tokenizer; leave it out",
    ),
    "output is a file": (lambda p: p.pretrain(f"--output={p.write('file', 'x')}"), "file is no folder that you may"),
    "output under a file": (lambda p: p.pretrain(f"--output={p.write('file', 'x')}/run"), "file is no folder that you"),
    "unwritable": (lambda p: p.pretrain(f"--output={unwritable(p)}"), "cannot be written"),
    "no checkpoint": (
        lambda p: p.pretrain("--resume=absent"),
        "absent/training/manifest.json: not there; expected a checkpoint of a training run",
    ),
    "truncated checkpoint": (
        lambda p: p.pretrain(f"--resume={damaged(p)}"),
        "model/model.safetensors: ",
    ),
    "checkpoint of another shape": (
        lambda p: p.pretrain(f"--resume={p.model}", "--model.hidden_size=36"),
        "bert.embeddings.word_embeddings.weight is [131, 32], the model expects [131, 36]",
    ),
    "never over checkpoints": (
        lambda p: p.pretrain(f"--output={p.copied_run()}", "--resume=never"),
        "holds 2 checkpoints; resume them (--resume auto), or choose another output",
    ),
    "changed config": (
        lambda p: p.pretrain(f"--output={p.copied_run()}", "--training.steps=41", "--optimizer.learning_rate=2e-3"),
        "another config: optimizer.learning_rate was 0.001, is 0.002; training.steps was 40, is 41",
    ),
    "other corpus": (
        lambda p: p.pretrain(f"--output={p.copied_run()}", f"--corpus={other_corpus(p)}"),
        "other: not the corpus that ",
    ),
}

FINETUNING: dict[str, tuple[Act, str]] = {
    "unseen label": (
        lambda p: p.finetune(f"--task.validation={rows(p, json.dumps({'text': 'x', 'label': 'new'}))}"),
        "given.jsonl:3: label 'new' does not occur in training; expected bright, dark",
    ),
    "no label": (
        lambda p: p.finetune(f"--task.train={rows(p, json.dumps({'text': 'x'}))}"),
        "given.jsonl:3: no field 'label'; this row has text",
    ),
    "a number": (
        lambda p: p.finetune(f"--task.train={rows(p, json.dumps({'text': 'x', 'label': 0.5}))}"),
        "given.jsonl:3: label is 0.5; expected a class, a string or a whole number",
    ),
    "null text": (
        lambda p: p.finetune(f"--task.train={rows(p, json.dumps({'text': None, 'label': 'dark'}))}"),
        "given.jsonl:3: text is null; expected a string",
    ),
    "one label": (
        lambda p: p.finetune(f"--task.train={small.write_rows(p.path('one.jsonl'), [{'text': 'x', 'label': 1}] * 3)}"),
        "one.jsonl: 1 different labels in 'label'; expected two or more",
    ),
    "no rows": (lambda p: p.finetune(f"--task.test={p.write('none.jsonl', '')}"), "none.jsonl: no rows; expected some"),
    "missing rows": (lambda p: p.finetune("--task.train=absent.csv"), "absent.csv does not exist"),
    "no model": (lambda p: p.finetune("--model=absent"), "absent: there is no tokenizer here"),
    "no config": (lambda p: p.finetune(f"--model={without(p, 'config.json')}"), "config.json: no such file"),
    "no weights": (
        lambda p: p.finetune(f"--model={without(p, 'model.safetensors')}"),
        "model: expected model.safetensors or pytorch_model.bin, found neither",
    ),
    "truncated model": (
        lambda p: p.finetune(f"--model={damaged(p)}"),
        "model/model.safetensors: not a whole safetensors file",
    ),
    "longer than the positions": (
        lambda p: p.finetune("--task.max_length=49"),
        "task.max_length: 49 is more than the 48 positions of ",
    ),
    "too short": (lambda p: p.finetune("--task.max_length=2"), "task.max_length is 2; expected 3 at least"),
    "no such adapter": (lambda p: p.finetune("--adapter.kind=loraa"), "adapter.kind"),
    "meaningless field": (
        lambda p: p.finetune("--adapter.kind=frozen", "--adapter.rank=3"),
        "adapter.rank has no meaning for frozen",
    ),
    "no seeds": (lambda p: p.finetune("--training.seeds=[]"), "training.seeds is empty; expected one seed at least"),
    "a seed below zero": (lambda p: p.finetune("--training.seeds=[1,-1]"), "training.seeds"),
    "no such metric": (lambda p: p.finetune("--training.best_metric=bleu"), "training.best_metric"),
    "misspelt option": (lambda p: p.finetune("--training.epoch=3"), "did you mean training.epochs?"),
    "output is a file": (lambda p: p.finetune(f"--output={p.write('file', 'x')}"), "file is no folder that you may"),
}

PREDICTING: dict[str, tuple[Act, str]] = {
    "no model": (lambda p: p.predict("--model=absent"), "absent"),
    "truncated model": (lambda p: p.predict(f"--model={damaged(p)}"), "not a whole safetensors file"),
    "no folder": (
        lambda p: p.predict("--output=absent/predictions.csv"),
        "absent/predictions.csv: expected the name of a file to write, in a folder that exists",
    ),
    "output is a folder": (lambda p: p.predict(f"--output={p.folder}"), "place: expected the name of a file to write"),
    "output is the input": (
        lambda p: p.predict(f"--output={p.folder}/rows.jsonl"),
        "rows.jsonl: is the input itself; choose another output",
    ),
    "misspelt option": (lambda p: p.predict("--batchsize=3"), "did you mean batch_size?"),
}

CASES = {
    f"{script} {name}": case
    for script, cases in (
        ("prepare", PREPARING),
        ("pretrain", PRETRAINING),
        ("finetune", FINETUNING),
        ("predict", PREDICTING),
    )
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_ends_with_code_2_and_one_line(place: Place, name: str) -> None:
    act, message = CASES[name]
    code, out, err = act(place)
    said = [line for line in err.split("\n") if line not in ("", "counting words")]  # the stage that prepare is in
    assert code == 2, err
    assert len(said) == 1, err
    assert said[0].startswith("error: ")
    assert message in said[0]
    assert out == ""


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda p: p.predict(),
            "has no weights for classifier.linear.weight; expected a model that was trained for this",
        ),
        (
            lambda p: p.pretrain(f"--resume={p.model}", "--model.num_hidden_layers=1"),
            "the optimizer state in the checkpoint and the model differ in bert.encoder.layers.1.attention.key.bias",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused_after_the_warning_about_it(place: Place, act: Act, message: str) -> None:
    code, out, err = act(place)
    warning, error, end = err.split("\n")
    assert (code, out, end) == (2, "", "")
    assert str(place.model) in warning
    assert error.startswith("error: ")
    assert error.endswith(message)


def test_a_run_without_a_whole_checkpoint_is_refused_after_a_line_for_each(place: Place) -> None:
    run = all_damaged(place)
    code, _, err = place.pretrain(f"--output={run}")
    said = err.split("\n")
    assert code == 2
    assert [line.partition("step-")[2][:8] for line in said[:2]] == ["00000040", "00000036"]
    assert said[2:] == [f"error: {run}: none of its 2 checkpoints is whole; choose another output to begin anew", ""]


def test_a_checkpoint_of_fine_tuning_is_no_place_to_go_on_from(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    rows = small.write_rows(tmp_path / "rows.jsonl", small.rows(0, 7))
    options = [f"--model={place.model}", f"--task.train={rows}", f"--task.validation={rows}", "--task.max_length=31"]
    tuned = processes.run(FINETUNE, *options, f"--output={out}", "--training.epochs=1", said=tmp_path / "tuning")
    assert tuned.code == 0, tuned.err
    code, _, err = place.pretrain(f"--resume={out / 'seed-0' / 'last'}")
    assert (code, err.count("error: ")) == (2, 1)
    assert "Traceback" not in err


def test_a_bad_row_in_the_middle_leaves_no_predictions(place: Place, tmp_path: Path) -> None:
    rows = small.write_rows(tmp_path / "rows.jsonl", small.rows(0, 7))
    options = [f"--model={place.model}", f"--task.train={rows}", f"--task.validation={rows}", "--task.max_length=31"]
    out = tmp_path / "tuned"
    assert processes.run(FINETUNE, *options, f"--output={out}", "--training.epochs=1", said=tmp_path / "s").code == 0
    bad = place.write("bad.jsonl", '{"text": "the river"}\n' * 7 + '{"body": "x"}\n')
    code, said, err = place.predict(f"--model={out / 'seed-0' / 'last'}", f"--input={bad}", "--batch_size=1")
    assert (code, said) == (2, "")
    assert err == f"error: {bad}:8: no field 'text'; this row has body\n"


def test_a_corpus_of_other_settings_is_replaced_only_where_that_is_asked(place: Place) -> None:
    text = small.write_text(place.path("text.txt"), count=7)
    command = [f"--sources=[{text}]", f"--output={place.path('out')}"]
    assert processes.run(PREPARE, *command, "--vocab_size=83", said=place.folder.parent / "first").code == 0
    code, _, err = place.prepare(*command, "--vocab_size=89")
    said = "out is there already, with other settings (vocab_size 83, not 89); choose another output, or set overwrite"
    assert code == 2
    assert f"{said}: true\n" in err
    again = [*command, "--vocab_size=89", "--overwrite=true"]
    assert processes.run(PREPARE, *again, said=place.folder.parent / "again").code == 0


def test_ctrl_c_is_no_mistake(place: Place) -> None:
    options = [f"--corpus={place.corpus}", f"--output={place.path('run')}", *small.PRETRAINING]
    running = processes.start(PRETRAIN, *options, said=place.folder.parent / "said")
    processes.wait_until(lambda: (place.path("run") / "last").exists(), running)
    assert running.process.pid is not None
    os.kill(running.process.pid, signal.SIGINT)
    ended = running.wait()
    assert ended.code == 130
    assert ended.err.endswith("error: interrupted\n")
