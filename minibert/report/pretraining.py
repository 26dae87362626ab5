"""The sections on pretraining: what was done, how it went, what it came to on documents that were held out."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from markupsafe import Markup

from minibert.config import BertConfig
from minibert.model import BertForPreTraining
from minibert.report.charts import line_chart
from minibert.report.page import Table
from minibert.report.runs import Facts, PretrainingRun
from minibert.report.wording import NUMBER, RATE, SHARE, SPEED, Format, Unit, count, duration, percent

_perplexity: Format = "{:,.1f}".format
_COLUMNS = {
    "mlm_loss": ("Masked-LM loss", NUMBER.value),
    "perplexity": ("Perplexity", _perplexity),
    "mlm_accuracy": ("Masked-LM accuracy", percent),
    "nsp_loss": ("Next-sentence loss", NUMBER.value),
    "nsp_accuracy": ("Next-sentence accuracy", percent),
}
_PRECISION = {"no": "float32", "bf16": "bfloat16, mixed", "fp16": "float16, mixed", "fp8": "8-bit floats, mixed"}


class Curve(NamedTuple):
    """A picture of a metric over the steps, and what to look for in it."""

    title: str
    caption: str
    picture: Markup


def about_pretraining(run: PretrainingRun) -> dict[str, Any]:
    """All that the page says of a run; what is not known yet is empty."""
    fields = run.config.get("model")
    model = BertConfig.from_dict(fields) if fields else None
    return {
        "run": run,
        "model": model,
        "parameters": parameters(model) if model else None,
        "numbers": _numbers(run),
        "facts": _facts(run, model),
        "curves": _curves(run, model),
        "validation": _validation(run),
    }


def parameters(config: BertConfig) -> int:
    """How many parameters a model of this shape has with both pretraining heads; none are made."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in BertForPreTraining(config).parameters())


def _numbers(run: PretrainingRun) -> dict[str, str]:
    """The few numbers for the top of the page, each with its name."""
    return _known(
        {
            "masked-LM accuracy": _value(run.last("validation", "mlm_accuracy"), percent),
            "perplexity": _value(run.last("validation", "perplexity"), _perplexity),
            "next-sentence accuracy": _value(run.last("validation", "nsp_accuracy"), percent),
            "tokens trained on": _value(run.last("train", "tokens"), count).replace(" million", " M"),
            "training time": duration(run.seconds) if run.seconds else "",
        }
    )


def _facts(run: PretrainingRun, model: BertConfig | None) -> dict[str, dict[str, str]]:
    """Model, corpus, training and machine as tables of facts."""
    groups = {
        "Model": _model_facts(model) if model else {},
        "Text": _corpus_facts(run.corpus),
        "Training": _training_facts(run),
        "Machine": _machine_facts(run.environment),
    }
    return {name: known for name, facts in groups.items() if (known := _known(facts))}


def _model_facts(model: BertConfig) -> dict[str, str]:
    attention, reach = model.attention, model.attention.window
    return {
        "Parameters": f"{parameters(model):,}, with both heads",
        "Layers": f"{model.num_hidden_layers}, each {model.hidden_size} wide, {model.intermediate_size:,} inside",
        "Attention": f"{model.num_attention_heads} heads, {attention.score.replace('_', ' ')} scores, "
        f"{attention.weights} weights, {'global' if reach is None else f'window of {reach}'}",
        "Vocabulary": f"{model.vocab_size:,} entries",
        "Positions": f"{model.max_position_embeddings:,}",
    }


def _corpus_facts(corpus: Facts) -> dict[str, str]:
    counts = corpus.get("counts", {})
    labels = counts.get("label_shares", {})
    return {
        "Sources": _sources(corpus.get("sources", ())),
        "Training part": _sizes(counts.get("train")),
        "Held out": _sizes(counts.get("validation")),
        "Unknown tokens": _value(counts.get("unknown_share"), "{:.3%}".format),
        "Next sentences": f"{labels['continuation']:.1%} true, {labels['random']:.1%} random" if labels else "",
        "Fingerprint": corpus.get("fingerprint", "")[:16],
    }


def _training_facts(run: PretrainingRun) -> dict[str, str]:
    training, schedule = run.config.get("training", {}), run.config.get("schedule", {})
    length = run.config.get("pairs", {}).get("max_length")
    rate, tokens = run.config.get("optimizer", {}).get("learning_rate"), run.last("train", "tokens")
    return {
        "Steps": f"{run.step:,} of {run.steps:,}" if run.steps else f"{run.step:,}",
        "Batch": f"{training['batch_size']:,} rows of {length} tokens" if length and training else "",
        "Speed": f"{tokens / run.seconds:,.0f} tokens a second" if tokens and run.seconds else "",
        "Learning rate": f"up to {rate:g}, {schedule['kind']}, warm-up {schedule['warmup']:.0%}" if rate else "",
        "Precision": _PRECISION.get(run.environment.get("precision", ""), ""),
        "Seed": str(training.get("seed", "")),
    }


def _machine_facts(facts: Facts) -> dict[str, str]:
    packages = {"Python": facts.get("python"), **facts.get("packages", {})}
    named = ("Python", "torch", "accelerate", "minibert")
    return {
        "Device": str(facts.get("device", "")),
        "Processes": f"{facts['processes']}, with {facts['threads']} threads" if "threads" in facts else "",
        "System": str(facts.get("platform", "")),
        "Software": ", ".join(f"{name} {packages[name]}" for name in named if packages.get(name)),
    }


def _sources(sources: Sequence[Facts], most: int = 4) -> str:
    """The names of the first few sources; a folder may hold thousands."""
    names = [source.get("open_corpus") or source.get("hub") or source.get("path", "unknown") for source in sources]
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _sizes(counts: Facts | None) -> str:
    return ", ".join(f"{counts[name]:,} {name}" for name in ("documents", "sentences", "tokens")) if counts else ""


def _curves(run: PretrainingRun, model: BertConfig | None) -> list[Curve]:
    """Losses, accuracies, speed and learning rate over the steps; those without numbers are left out."""
    vocabulary = (model or BertConfig()).vocab_size
    words = f"Cross-entropy in nats; a uniform guess over {vocabulary:,} tokens costs {math.log(vocabulary):.2f}."
    speed = "Tokens a second, without padding, and without the time for evaluation and saving."
    coin, half = ("guessing: ln 2 = 0.693", math.log(2)), ("guessing: 50%", 0.5)
    curves = [
        _curve(run, "mlm_loss", NUMBER, "Masked-LM loss", words),
        _curve(run, "mlm_accuracy", SHARE, "Masked-LM accuracy", "Share of masked tokens found.", zero=True),
        _curve(run, "nsp_loss", NUMBER, "Next-sentence loss", "Cross-entropy in nats.", reference=coin),
        _curve(run, "nsp_accuracy", SHARE, "Next-sentence accuracy", "Share of pairs told right.", reference=half),
        _curve(run, "tokens_per_second", SPEED, "Throughput", speed, zero=True),
        _curve(run, "learning_rate", RATE, "Learning rate", "A function of the step alone.", zero=True),
    ]
    return [curve for curve in curves if curve is not None]


def _curve(run: PretrainingRun, name: str, unit: Unit, title: str, caption: str, **options: Any) -> Curve | None:
    """The curve of a metric, training in grey beside validation; none where there are no numbers."""
    lines = _known({"training": run.series("train", name), "validation": run.series("validation", name)})
    return Curve(title, caption, line_chart(title, lines, unit, **options)) if lines else None


def _validation(run: PretrainingRun) -> Table:
    """All numbers of all evaluations."""
    return Table(
        "Each evaluation, always on the same rows and masks from held-out documents",
        ["Step", *(title for title, _ in _COLUMNS.values())],
        [
            [f"{row['step']:,}", *(_value(row["values"].get(name), write) for name, (_, write) in _COLUMNS.items())]
            for row in run.rows
            if row["split"] == "validation"
        ],
    )


def _known(named: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value}


def _value(value: float | None, write: Format) -> str:
    return "" if value is None else write(value)
