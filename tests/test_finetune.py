"""finetune/train.py and predict.py as a person runs them, on a task whose two classes are told apart by their words."""

import csv
import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import processes
import pytest
import small
import torch
from accelerate import Accelerator
from processes import FINETUNE, PREDICT, Ended
from torch import Tensor, nn

from minibert import BertForSequenceClassification, UserError, cli
from minibert.data import tasks
from minibert.data.ragged import Inputs
from minibert.data.tokenizer import load_tokenizer
from minibert.inference import load_classifier
from minibert.training import checkpoint

KINDS = {
    "full": ["--optimizer.learning_rate=3e-3"],
    "frozen": ["--adapter.kind=frozen", "--optimizer.learning_rate=1e-1", "--training.epochs=5"],
    "lora": ["--adapter.kind=lora", "--adapter.rank=3", "--optimizer.learning_rate=2e-2"],
    "pfeiffer": ["--adapter.kind=pfeiffer", "--adapter.reduction=2", "--optimizer.learning_rate=2e-2"],
}
SPLITS = {"train": (0, 173), "validation": (1, 97), "test": (2, 53)}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows for training, validation and test."""
    folder = tmp_path_factory.mktemp("task")
    for split, (seed, count) in SPLITS.items():
        small.write_rows(folder / f"{split}.jsonl", small.rows(seed, count))
    return folder


@pytest.fixture(scope="module")
def options(task: Path, pretrained: Path) -> list[str]:
    return [
        f"--model={pretrained / 'last'}",
        *(f"--task.{split}={task / split}.jsonl" for split in SPLITS),
        "--task.max_length=37",
        "--training.batch_size=16",
        "--training.micro_batch_size=7",
        "--training.epochs=4",
        "--training.log_every=1",
    ]


@pytest.fixture(scope="module")
def runs(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each kind with two seeds; not to be changed."""
    folder = tmp_path_factory.mktemp("finetuned")
    started = {
        kind: processes.start(
            FINETUNE,
            *options,
            *more,
            f"--output={folder / kind}",
            "--training.seeds=[0,3]",
            said=folder / f"said-{kind}",
        )
        for kind, more in KINDS.items()
    }
    ended = {kind: running.wait() for kind, running in started.items()}
    assert all(end.code == 0 for end in ended.values()), ended
    return {kind: folder / kind for kind in KINDS}


@pytest.fixture
def finetuning(script: Callable[[Path], ModuleType], one_process: None) -> ModuleType:
    return script(FINETUNE)


def call(module: ModuleType, config: str, *options: str) -> None:
    """Run a script in this process."""
    module.main(cli.parse(getattr(module, config), list(options)))


def three_tokens_each(count: int) -> Inputs:
    return Inputs(np.tile([2, 7, 3], count), np.zeros(3 * count, np.int8), np.arange(0, 3 * count + 1, 3))


def labels_of(batch: Mapping[str, Tensor]) -> list[int]:
    return [label for label in batch["labels"].flatten().tolist() if label != -100]


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text("utf-8")))


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_learns_the_task(runs: dict[str, Path], kind: str) -> None:
    results = read(runs[kind] / "results.json")
    assert results["method"] == kind
    assert results["validation"]["accuracy"]["mean"] > 0.9
    assert results["test"]["accuracy"]["mean"] > 0.9
    assert (results["trainable_parameters"] == results["parameters"]) is (kind == "full")
    assert results["trainable_parameters"] >= 2 * 32 + 2


@pytest.mark.parametrize("kind", KINDS)
def test_results_have_mean_and_spread_over_the_seeds(runs: dict[str, Path], kind: str) -> None:
    results = read(runs[kind] / "results.json")
    seeds = [read(runs[kind] / f"seed-{seed}" / "result.json") for seed in (0, 3)]
    assert results["seeds"] == [0, 3] == [seed["seed"] for seed in seeds]
    for split in ("validation", "test"):
        assert results[split].keys() == {"loss", "accuracy", "f1", "matthews"}
        for name, figure in results[split].items():
            values = [seed[split][name] for seed in seeds]
            assert figure["values"] == values
            assert figure["mean"] == pytest.approx(np.mean(values))
            assert figure["spread"] == pytest.approx(statistics.stdev(values))
    assert results["seconds"]["values"] == [seed["seconds"] for seed in seeds]


def test_each_seed_keeps_its_best_epoch_only(runs: dict[str, Path]) -> None:
    for seed in (0, 3):
        folder = runs["full"] / f"seed-{seed}"
        lines = small.read_metrics(folder)
        validated = {line["step"]: line["values"] for line in lines if line["split"] == "validation"}
        assert list(validated) == [11, 22, 33, 44]  # 173 rows, 16 in an update
        best = max(validated, key=lambda step: (validated[step]["accuracy"], -step))
        assert [path.name for path in checkpoint.checkpoints(folder)] == [f"step-{best:08d}"]
        assert read(folder / "result.json")["validation"] == validated[best]
        assert [line["step"] for line in lines if line["split"] == "train"] == list(range(1, 45))


def test_labels_and_fields_are_kept_with_the_model(runs: dict[str, Path]) -> None:
    last = runs["full"] / "seed-0" / "last"
    assert read(last / "config.json")["id2label"] == {"0": "bright", "1": "dark"}
    assert read(last / "task.json") == {"text": "text", "text_pair": None, "max_length": 37}
    assert BertForSequenceClassification.from_pretrained(last).config.label_names == ["bright", "dark"]


def test_an_adapter_is_saved_with_its_head_and_without_its_base(runs: dict[str, Path]) -> None:
    sizes = {
        kind: sum(path.stat().st_size for path in (runs[kind] / "seed-0" / "last").glob("*.safetensors"))
        for kind in KINDS
    }
    assert all(sizes[kind] < sizes["full"] / 2 for kind in ("frozen", "lora", "pfeiffer")), sizes


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_the_evaluation(
    runs: dict[str, Path], task: Path, tmp_path: Path, script: Callable[[Path], ModuleType], kind: str
) -> None:
    model, rows = runs[kind] / "seed-3" / "last", small.rows(*SPLITS["test"])
    output = tmp_path / "predictions.jsonl"
    call(
        script(PREDICT),
        "PredictConfig",
        f"--model={model}",
        f"--input={task / 'test.jsonl'}",
        f"--output={output}",
        "--batch_size=11",
    )
    predictions = [json.loads(line) for line in output.read_text("utf-8").split("\n")[:-1]]
    right = [row["label"] == prediction["label"] for row, prediction in zip(rows, predictions, strict=True)]
    assert statistics.mean(right) == pytest.approx(read(model.parent / "result.json")["test"]["accuracy"])
    classifier, tokenizer = load_classifier(model)
    for row, prediction in list(zip(rows, predictions, strict=True))[:13]:
        ids = torch.tensor([tokenizer.encode(row["text"]).ids])
        with torch.no_grad():
            slow = classifier.eval()(ids).logits.softmax(-1)[0].tolist()
        assert list(prediction["probabilities"]) == ["bright", "dark"]
        assert list(prediction["probabilities"].values()) == pytest.approx(slow, abs=1e-5)
        assert sum(prediction["probabilities"].values()) == pytest.approx(1.0)
        assert prediction["probabilities"][prediction["label"]] == max(prediction["probabilities"].values())


def test_every_row_gives_a_line_in_its_place_one_without_text_too(
    runs: dict[str, Path], tmp_path: Path, script: Callable[[Path], ModuleType]
) -> None:
    texts = [row["text"] * (1 + number % 5) for number, row in enumerate(small.rows(7, 61))]
    texts[5] = texts[60] = ""
    (tmp_path / "rows.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    small.write_rows(tmp_path / "rows.jsonl", [{"text": text} for text in texts])
    with (tmp_path / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text", "other"], *([text, "x"] for text in texts)])
    told = []
    for name, size in (("rows.txt", 64), ("rows.jsonl", 1), ("rows.csv", 5)):
        output = tmp_path / f"{name}.predicted.csv"
        call(
            script(PREDICT),
            "PredictConfig",
            f"--model={runs['full'] / 'seed-0' / 'last'}",
            f"--input={tmp_path / name}",
            f"--output={output}",
            f"--batch_size={size}",
        )
        with output.open(encoding="utf-8", newline="") as file:
            header, *lines = csv.reader(file)
        assert header == ["label", "bright", "dark"]
        assert len(lines) == 61
        told.append([[float(bright), float(dark)] for _, bright, dark in lines])
        assert [label for label, *_ in lines] == ["bright" if b > d else "dark" for b, d in told[-1]]
    assert np.allclose(told[0], told[1], atol=1e-5)
    assert np.allclose(told[0], told[2], atol=1e-5)
    assert np.allclose(np.sum(told[0], axis=1), 1.0, atol=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"rows.{kind}{more}" for kind in ("txt", "jsonl", "csv") for more in ("", ".predicted.csv")
    }


def test_pairs_are_trained_and_predicted(
    options: list[str], tmp_path: Path, finetuning: ModuleType, script: Callable[[Path], ModuleType]
) -> None:
    for split, seed in (("train", 0), ("validation", 1)):
        pairs = [
            {"a": row["text"], "b": "near the river " * (seed + 1), "y": row["label"]} for row in small.rows(seed, 23)
        ]
        small.write_rows(tmp_path / f"{split}.jsonl", pairs)
    call(
        finetuning,
        "FinetuneConfig",
        *options,
        f"--task.train={tmp_path / 'train.jsonl'}",
        f"--task.validation={tmp_path / 'validation.jsonl'}",
        "--task.test=null",
        *("--task.text=a", "--task.text_pair=b", "--task.label=y", "--training.epochs=1"),
        f"--output={tmp_path / 'run'}",
    )
    assert "test" not in read(tmp_path / "run" / "results.json")
    output = tmp_path / "out.jsonl"
    call(
        script(PREDICT),
        "PredictConfig",
        f"--model={tmp_path / 'run' / 'seed-0' / 'last'}",
        f"--input={tmp_path / 'validation.jsonl'}",
        f"--output={output}",
    )
    assert len(output.read_text("utf-8").split("\n")) == 23 + 1


def test_killed_between_two_seeds_it_does_not_repeat_the_finished_one(
    options: list[str], runs: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = [*options, *KINDS["full"], f"--output={run}"]
    running = processes.start(FINETUNE, *command, "--training.seeds=[0,3]", said=tmp_path / "first")
    processes.wait_until(lambda: (run / "seed-3" / "last").exists(), running)
    running.kill()
    assert running.wait().code == -9
    assert not (run / "results.json").exists()
    before = _state(run / "seed-0")

    ended = processes.run(FINETUNE, *command, "--training.seeds=[0,3,5]", said=tmp_path / "again")
    assert ended.code == 0, ended.err
    assert _state(run / "seed-0") == before
    results, straight = read(run / "results.json"), read(runs["full"] / "results.json")
    assert results["seeds"] == [0, 3, 5]
    assert len(checkpoint.checkpoints(run / "seed-3")) == 1
    for split in ("validation", "test"):
        for name, figure in results[split].items():
            assert figure["values"][:2] == straight[split][name]["values"]
    assert small.read_metrics(run / "seed-3") == small.read_metrics(runs["full"] / "seed-3")


def test_what_a_killed_seed_left_does_not_outlive_its_repetition(
    options: list[str], tmp_path: Path, finetuning: ModuleType
) -> None:
    """A best epoch that was saved before the kill may never come again, on another machine."""
    old = tmp_path / "run" / "seed-0"
    checkpoint.save(old, checkpoint.TrainingState(999, {}, {}), lambda path: (path / "old").touch(), keep=1)
    call(finetuning, "FinetuneConfig", *options, "--training.epochs=1", f"--output={tmp_path / 'run'}")
    assert [path.name for path in checkpoint.checkpoints(old)] == ["step-00000011"]
    assert (old / "last").resolve().name == "step-00000011"


def test_another_config_is_refused_where_there_is_something_to_lose(
    options: list[str], tmp_path: Path, finetuning: ModuleType
) -> None:
    command = [*options, f"--output={tmp_path / 'run'}", "--training.epochs=1"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("task: {train: other}\n", encoding="utf-8")  # it failed at once
    call(finetuning, "FinetuneConfig", *command)
    with pytest.raises(UserError, match=r"another config: optimizer.learning_rate was 0.0003, is 0.1$"):
        call(finetuning, "FinetuneConfig", *command, "--optimizer.learning_rate=0.1")
    call(finetuning, "FinetuneConfig", *command, "--training.seeds=[0,1]", "--training.micro_batch_size=3")
    assert read(tmp_path / "run" / "results.json")["seeds"] == [0, 1]


def test_random_weights_take_shape_and_tokenizer_only(
    options: list[str], tmp_path: Path, finetuning: ModuleType, pretrained: Path
) -> None:
    call(
        finetuning,
        "FinetuneConfig",
        *options,
        f"--output={tmp_path / 'run'}",
        *("--random_weights=true", "--optimizer.learning_rate=1e-12", "--training.epochs=1"),
    )
    assert read(tmp_path / "run" / "results.json")["model"] is None
    random = BertForSequenceClassification.from_pretrained(tmp_path / "run" / "seed-0" / "last")
    encoder = BertForSequenceClassification.from_pretrained(pretrained / "last")
    ours, theirs = (model.bert.embeddings.tokens.weight.detach() for model in (random, encoder))
    assert ours.shape == theirs.shape
    assert abs(float(torch.corrcoef(torch.stack([ours.flatten(), theirs.flatten()]))[0, 1])) < 0.05


def test_a_seed_that_diverges_ends_in_one_line(options: list[str], tmp_path: Path, finetuning: ModuleType) -> None:
    with pytest.raises(UserError, match=r"^seed 0: no finite gradient in 10 updates in a row, up to update 11$"):
        call(finetuning, "FinetuneConfig", *options, "--optimizer.learning_rate=1e30", f"--output={tmp_path / 'run'}")
    assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize(
    ("metric", "offered", "best"),
    [
        ("accuracy", [0.5, 0.7, 0.7, 0.6], 2),
        ("accuracy", [float("nan"), 0.1, float("nan")], 2),
        ("loss", [0.5, 0.4, 0.4, 0.9], 2),
        ("loss", [0.5, float("nan"), 0.6], 1),
        ("matthews", [-0.5, -0.25, -0.25], 2),
    ],
)
def test_the_best_epoch_is_the_first_of_the_best_and_never_nan(
    finetuning: ModuleType, metric: str, offered: list[float], best: int
) -> None:
    model, kept = nn.Linear(1, 1), finetuning.Best(metric)
    for epoch, score in enumerate(offered, start=1):
        nn.init.constant_(model.weight, float(epoch))
        kept.offer(epoch, {metric: score}, model)
    kept.restore(model)
    assert (kept.step, float(model.weight.detach()), kept.scores) == (best, best, {metric: offered[best - 1]})


def test_where_no_epoch_has_a_number_there_is_no_best(finetuning: ModuleType) -> None:
    kept = finetuning.Best("loss")
    assert not kept.offer(1, {"loss": float("nan")}, nn.Linear(1, 1))
    with pytest.raises(UserError, match="loss was not a number in any epoch"):
        kept.restore(nn.Linear(1, 1))


def test_the_last_update_of_an_epoch_has_the_rows_that_are_left(finetuning: ModuleType) -> None:
    examples = tasks.Examples(three_tokens_each(10), np.arange(10))
    settings = finetuning.TrainingSettings(epochs=2, batch_size=4, micro_batch_size=3)
    updates = list(finetuning.shares(examples, settings, 5, 0, SimpleNamespace(num_processes=1, process_index=0)))
    assert [done for done, _ in updates] == list(range(6))
    held = [[labels_of(part) for part in parts] for _, parts in updates]
    sizes = [sum(map(len, parts)) for parts in held]
    assert sorted(sizes[:3]) == sorted(sizes[3:]) == [2, 4, 4]
    assert all(len(part) <= 3 for parts in held for part in parts)
    for epoch in (held[:3], held[3:]):
        assert sorted(row for parts in epoch for part in parts for row in part) == list(range(10))


def test_a_row_less_than_processes_goes_to_one_of_them(finetuning: ModuleType) -> None:
    examples = tasks.Examples(three_tokens_each(3), np.arange(3))
    settings = finetuning.TrainingSettings(epochs=1, batch_size=2, micro_batch_size=2)
    seen = []
    for rank in range(2):
        elsewhere = SimpleNamespace(num_processes=2, process_index=rank)
        for _, parts in finetuning.shares(examples, settings, 0, 0, elsewhere):
            assert len(parts) == 1
            seen += labels_of(parts[0])
    assert sorted(seen) == [0, 1, 2]


def test_97_rows_on_two_processes_have_the_scores_of_one(
    runs: dict[str, Path], task: Path, tmp_path: Path, finetuning: ModuleType
) -> None:
    arguments = str(runs["lora"] / "seed-0" / "last"), str(task / "validation.jsonl"), str(tmp_path)
    _evaluate(*arguments)
    one = read(tmp_path / "1-0.json")
    ended = processes.call_all(_evaluate, *arguments, said=tmp_path / "said", world=2)
    assert [process.code for process in ended] == [0, 0], ended
    assert read(tmp_path / "2-0.json") == pytest.approx(one, abs=1e-6)
    assert read(tmp_path / "2-1.json") == pytest.approx(one, abs=1e-6)
    assert one["accuracy"] * 97 == pytest.approx(round(one["accuracy"] * 97))


def test_two_processes_train_to_the_end_with_a_last_row_for_one_of_them(options: list[str], tmp_path: Path) -> None:
    train = small.write_rows(tmp_path / "train.jsonl", small.rows(0, 49))
    both = processes.start_all(
        FINETUNE,
        *options,
        *KINDS["lora"],
        f"--task.train={train}",
        f"--output={tmp_path / 'run'}",
        "--training.seeds=[0,1]",
        said=tmp_path / "both",
        world=2,
    )
    ended = [process.wait() for process in both]
    assert [process.code for process in ended] == [0, 0], ended
    assert _printed(ended) == [True, False]
    assert read(tmp_path / "run" / "results.json")["validation"]["accuracy"]["mean"] > 0.5


def _evaluate(model: str, source: str, folder: str) -> None:
    """The scores of the script's evaluation, in each process."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("finetuning", FINETUNE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    accelerator, tokenizer = Accelerator(cpu=True), load_tokenizer(model)
    settings = tasks.TaskSettings("", "", max_length=37)
    examples = tasks.read_examples(source, settings, ["bright", "dark"], tokenizer)
    wrapped = accelerator.prepare(load_classifier(model)[0])
    scores = module.evaluate(wrapped, examples, module.TrainingSettings(micro_batch_size=8), 0, accelerator)
    name = f"{accelerator.num_processes}-{accelerator.process_index}.json"
    (Path(folder) / name).write_text(json.dumps(scores), encoding="utf-8")


def _state(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def _printed(ended: list[Ended]) -> list[bool]:
    return ["parameters trained" in end.out for end in ended]


def test_the_configs_that_come_with_it_can_be_read(finetuning: ModuleType) -> None:
    paths = sorted((processes.ROOT / "configs" / "finetune").glob("*.yaml"))
    configs = [cli.parse(finetuning.FinetuneConfig, [f"--config={path}"]) for path in paths]
    assert configs
    assert {config.adapter.kind for config in configs if config.adapter.config() is None} <= {"full"}
