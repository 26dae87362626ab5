"""The report: its numbers are those of the files, its sentences are honest, and it needs nothing beside itself."""

import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
import torch

from minibert import BertConfig, BertForPreTraining
from minibert.data.tokenizer import save_tokenizer, train_tokenizer, vocabulary
from minibert.errors import UserError
from minibert.inference import fill_mask
from minibert.report import write_report, write_run_report
from minibert.report.__main__ import main
from minibert.report.charts import line_chart, seed_chart, thinned
from minibert.report.examples import sharpest
from minibert.report.findings import findings
from minibert.report.runs import FinetuningRun, Score, read_finetuning, read_pretraining
from minibert.report.wording import NUMBER, SCORE

VOID = {"meta", "link", "br", "hr", "img", "input"}
SHAPE = {
    "vocab_size": 197,
    "hidden_size": 22,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 29,
    "max_position_embeddings": 40,
}


SOURCES = [{"open_corpus": "imdb"}, {"hub": "hub:x"}, *({"path": f"part-{number}.txt"} for number in range(1001))]


class Page(HTMLParser):
    """Reads a page strictly: every element is closed in its turn."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.text, self.attributes, self.pictures = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.attributes += attributes
        if tag == "svg":
            self.pictures.append(dict(attributes))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def write_json(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_metrics(run: Path, rows) -> None:
    lines = [json.dumps({"step": step, "split": split, "values": values}) + "\n" for step, split, values in rows]
    (run / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")


def train_row(step: int, **values):
    defaults = {"loss": 7.9, "mlm_loss": 7.2, "nsp_loss": 0.7, "learning_rate": 3e-4, "tokens_per_second": 500.0}
    return step, "train", {**defaults, "tokens": 1000 * step, **values}


@pytest.fixture
def run(tmp_path) -> Path:
    """A finished pretraining run without its checkpoint."""
    corpus, run = tmp_path / "corpus", tmp_path / "pretrain"
    sizes = {"documents": 1013, "sentences": 20_011, "tokens": 300_007}
    counts = {"train": sizes, "validation": {"documents": 17, "sentences": 331, "tokens": 4001}}
    counts |= {"unknown_share": 0.00123, "label_shares": {"continuation": 0.497, "random": 0.503}}
    about = {"fingerprint": "abcdef" * 10, "counts": counts, "sources": SOURCES, "warnings": ["odd text"]}
    write_json(corpus / "corpus.json", about)
    facts = {"python": "3.11.7", "packages": {"torch": "2.13.0"}, "device": "cpu", "processes": 1, "threads": 2}
    write_json(run / "environment.json", {**facts, "precision": "bf16", "platform": "Linux", "command": ["train.py"]})
    config = {"corpus": str(corpus), "model": SHAPE, "pairs": {"max_length": 37}, "training": {"steps": 40}}
    config["training"] |= {"batch_size": 31, "seed": 5}
    config |= {"optimizer": {"learning_rate": 0.0003}, "schedule": {"kind": "linear", "warmup": 0.1}}
    (run / "config.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    scores = {
        "mlm_loss": 5.4321,
        "mlm_accuracy": 0.2345,
        "nsp_loss": 0.6543,
        "nsp_accuracy": 0.6173,
        "perplexity": 228.6,
    }
    write_metrics(
        run, [train_row(10), train_row(20, tokens_per_second=250.0), (20, "validation", scores), train_row(40)]
    )
    return run


def results(path: Path, values=(0.71, 0.73, 0.75), *, method="full", model="base", trained=1009, **changes) -> Path:
    """A finished fine-tuning run with these test accuracies."""
    facts = {"task": "rotten-tomatoes:train", "method": method, "model": model, "best_metric": "accuracy"}
    facts |= {"parameters": 1009, "trainable_parameters": trained, "seeds": list(range(len(values)))}
    scores = {"accuracy": scored(values), "f1": scored([0.613]), "matthews": scored([0.417])}
    write_json(
        path / "results.json", facts | {"validation": scores, "test": scores, "seconds": scored([83.0])} | changes
    )
    return path


def scored(values) -> dict:
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))
    return {"mean": mean, "spread": spread, "values": list(values)}


def tuned(values, **options) -> FinetuningRun:
    facts = {
        "task": "t",
        "method": "full",
        "is_pretrained": True,
        "parameters": 1009,
        "trained": 1009,
    }
    facts |= {"best_metric": "accuracy", "seconds": Score(1.0, 0.0, [1.0])}
    metric = options.get("best_metric", "accuracy")
    return FinetuningRun(**{**facts, "scores": {"test": {metric: Score(**scored(values))}}, **options})


def test_numbers_of_the_files_stand_in_the_page(run, tmp_path):
    tuned_run, output = results(tmp_path / "full", method="lora", trained=101), tmp_path / "report.html"
    write_report(run, output, finetuning=[tuned_run], title="A title of mine")
    words = read(output).words
    training = [
        "23.4%",
        "5.43",
        "228.6",
        "0.654",
        "61.7%",
        "40,000",
        "31 rows of 37 tokens",
        "linear",
        "bfloat16",
    ]
    corpus = [
        "imdb",
        "1,013 documents, 20,011 sentences, 300,007 tokens",
        "17 documents",
        "0.123%",
        "49.7%",
        "Odd text.",
    ]
    tuning = ["73.00% ± 2.00", "71.00 73.00 75.00", "61.30%", "0.417", "83.0", "101 10.01%", "LoRA", "rotten-tomatoes"]
    for number in training + corpus + tuning:
        assert number in words
    assert "A title of mine" in words
    assert f"{sum(weight.numel() for weight in BertForPreTraining(BertConfig(**SHAPE)).parameters()):,}" in words


def test_training_time_is_tokens_by_speed_line_by_line(run):
    assert read_pretraining(run).seconds == pytest.approx(10_000 / 500 + 10_000 / 250 + 20_000 / 500)


def test_the_page_fetches_nothing_and_every_picture_has_words(run, tmp_path):
    write_report(
        run, tmp_path / "report.html", finetuning=[results(tmp_path / "a"), results(tmp_path / "b", model=None)]
    )
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    found = Page(text)
    assert not re.search(r"https?://|//[a-z]|@import|url\((?!#)|<script|<link|<img|<iframe", text)
    assert all(value.startswith("#") for name, value in found.attributes if name in ("href", "src", "srcset"))
    assert len(found.pictures) == 7
    assert all(picture["role"] == "img" and len(picture["aria-label"]) > 20 for picture in found.pictures)
    identifiers = [value for name, value in found.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    assert {value[1:] for name, value in found.attributes if name == "href"} <= set(identifiers)
    assert all(f"#{name}" in text for name in identifiers)


def test_equal_files_give_an_equal_page(run, tmp_path):
    first = write_run_report(run).read_bytes()
    assert write_run_report(run).read_bytes() == first
    assert sorted(path.name for path in run.iterdir()) == [
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "report.html",
    ]


def test_a_model_fills_masks_and_shows_where_it_looks(run):
    sentences = ["the [MASK] was good", "is [MASK] the [MASK] ?"]
    with pytest.warns(UserWarning, match="vocabulary entries"):
        tokenizer = train_tokenizer(
            [*"abcdefghijklmnopqrstuvwxyz.?", "the film was good , is the sea"] * 2, vocab_size=197
        )
    torch.manual_seed(1)
    model = BertForPreTraining(
        BertConfig(**SHAPE | {"vocab_size": vocabulary(tokenizer).size, "initializer_range": 0.5})
    )
    model.save_pretrained(run / "last")
    save_tokenizer(tokenizer, run / "last")
    write_report(run, run / "report.html", sentences=[*sentences, "电影 [MASK]"])
    found = read(run / "report.html")
    assert "[MASK]" in found.words
    assert "电" not in found.words  # the vocabulary does not know it
    for sentence in sentences:
        for candidates in fill_mask(model, tokenizer, sentence):
            assert all(f"{token} {probability:.1%}" in found.words for token, probability in candidates)
    assert any(value.startswith("Attention of layer") for name, value in found.attributes if name == "aria-label")
    write_report(run, run / "report.html", sentences=["电影 [MASK]"])
    assert "vocabulary lacks characters" in read(run / "report.html").words


def test_an_unfinished_run_says_so(run):
    write_metrics(run, [train_row(10, nsp_loss=None)])
    (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes() + b'{"step": 20, "spl')
    words = read(write_run_report(run)).words
    assert "not finished: 10 of 40 steps" in words
    assert "has not been evaluated yet" in words
    assert "no checkpoint yet" in words


def test_an_empty_run_and_tuning_without_results_are_said_to_be_so(tmp_path):
    for name in ("run", "tuning"):
        (tmp_path / name).mkdir()
    write_report(tmp_path / "run", tmp_path / "deep" / "report.html", finetuning=[tmp_path / "tuning"])
    words = read(tmp_path / "deep" / "report.html").words
    assert "No step has been written down yet" in words
    assert "tuning is not finished" in words


def test_runs_that_do_not_exist_or_are_damaged_are_refused_in_one_line(run, tmp_path):
    with pytest.raises(UserError, match="nowhere: no such directory"):
        write_run_report(tmp_path / "nowhere")
    with pytest.raises(UserError, match="nowhere: no such directory"):
        write_report(run, tmp_path / "r.html", finetuning=[tmp_path / "nowhere"])
    write_json(tmp_path / "odd" / "results.json", {"task": "t"})
    with pytest.raises(UserError, match=r"results.json: not the results"):
        read_finetuning(tmp_path / "odd")
    for name in ("environment.json", "metrics.jsonl", "config.yaml"):
        before = (run / name).read_bytes()
        (run / name).write_bytes(b"{[\n")
        with pytest.raises(UserError, match=name):
            write_run_report(run)
        (run / name).write_bytes(before)


def test_a_gain_larger_than_the_spread_is_called_one():
    (sentence,) = findings([tuned([0.80, 0.81, 0.82]), tuned([0.70, 0.72, 0.71], is_pretrained=False)])
    assert "reaches 81.00% test accuracy from the pretrained encoder and 71.00% from random weights" in sentence
    assert sentence.endswith(
        "The gain of 10.00 points is larger than the spread over seeds (1.00 points), and no seeds "
        "overlap: pretraining helped."
    )


def test_a_difference_within_the_spread_is_not_called_a_gain():
    (sentence,) = findings([tuned([0.70, 0.72, 0.74]), tuned([0.70, 0.71, 0.72], is_pretrained=False)])
    assert sentence.endswith(
        "The difference of +1.00 points is not larger than the spread over seeds (2.00 points): "
        "pretraining gained nothing here that can be told from chance."
    )


def test_a_loss_is_called_a_loss():
    (sentence,) = findings([tuned([0.60, 0.61, 0.62]), tuned([0.70, 0.72, 0.71], is_pretrained=False)])
    assert "The loss of 10.00 points is larger than the spread" in sentence
    assert sentence.endswith("pretraining did harm here.")


def test_overlapping_seeds_are_weak_evidence_and_one_seed_is_none():
    (sentence,) = findings([tuned([0.70, 0.74, 0.75]), tuned([0.69, 0.70, 0.71], is_pretrained=False)])
    assert "but their seeds overlap, which is weak evidence: pretraining helped" in sentence
    (sentence,) = findings([tuned([0.9]), tuned([0.1], is_pretrained=False)])
    assert "this difference says nothing yet" in sentence


def test_a_smaller_loss_is_the_better_one():
    better, worse = [0.30, 0.31, 0.32], [0.51, 0.50, 0.52]
    options = {"best_metric": "loss"}
    (sentence,) = findings([tuned(better, **options), tuned(worse, is_pretrained=False, **options)])
    assert "The gain of 0.200 is larger" in sentence


def test_only_like_is_compared_with_like():
    others = [
        tuned([0.1, 0.2], is_pretrained=False, task="another"),
        tuned([0.1, 0.2], is_pretrained=False, method="lora"),
        tuned([0.1, 0.2], is_pretrained=False, best_metric="f1"),
    ]
    for other in others:
        assert not [sentence for sentence in findings([tuned([0.8, 0.9]), other]) if "pretrained encoder" in sentence]


def test_an_adapter_is_measured_by_full_training():
    lora = tuned([0.78, 0.80], method="lora", trained=101)
    (sentence,) = findings([lora, tuned([0.80, 0.84])])
    assert sentence == (
        "LoRA trains 101 of 1,009 parameters (10.01%) and is 3.00 points worse than full training, more than the "
        "spread over seeds (2.83 points)."
    )


def test_what_a_user_typed_is_text_and_never_markup(tmp_path, run):
    task = '<script>alert(1)</script>&amp;"'
    write_report(run, tmp_path / "r.html", title=task, finetuning=[results(tmp_path / "full", task=task)])
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert task in Page(text).words


def test_several_runs_follow_one_option(run, tmp_path, capsys):
    runs = [str(results(tmp_path / name)) for name in ("a", "b")]
    main(["--finetuning", *runs, "--pretraining", str(run), "--output", str(tmp_path / "r.html"), "--sentences"])
    assert capsys.readouterr().out == f"{tmp_path / 'r.html'}\n"
    assert read(tmp_path / "r.html").words.count("71.00 73.00 75.00") == 2


def test_the_command_line_refuses_a_run_that_does_not_exist_in_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--pretraining", str(tmp_path / "nowhere"), "--output", str(tmp_path / "r.html")])
    assert stopped.value.code == 2
    assert re.fullmatch(r"error: .*nowhere: no such directory.*\n", capsys.readouterr().err)


def test_a_long_curve_becomes_means_in_order():
    points = [(step, math.sin(step)) for step in range(1, 1000)]
    means = thinned(points, most=150)
    assert len(means.steps) == 143
    assert means.steps[-1] == 999
    assert means.values[0] == pytest.approx(sum(math.sin(step) for step in range(1, 8)) / 7)
    assert means.lows[3] == min(math.sin(step) for step in range(22, 29))
    assert means.highs[-1] == max(math.sin(step) for step in range(995, 1000))
    assert thinned(points[:150], most=150).values.tolist() == [value for _, value in points[:150]]


def test_a_curve_stands_where_its_values_are():
    """Three points and the ticks beside them: what is one apart in value is equally far apart on the page."""
    chart = ElementTree.fromstring(line_chart("Loss", {"validation": [(0, 2.0), (50, 3.0), (100, 4.0)]}, NUMBER))
    ticks = {text.text: float(text.get("y")) for text in chart.iter("text")}
    (left, low), (middle, half), (right, high) = [
        (float(dot.get("x")), float(dot.get("y"))) for dot in chart.iter("use")
    ][:3]
    assert [low - half, half - high] == pytest.approx([ticks["2"] - ticks["3"], ticks["3"] - ticks["4"]], abs=0.2)
    assert low - high > 100
    assert middle - left == pytest.approx(right - middle, abs=0.2)
    assert ticks["4.000"] == pytest.approx(ticks["4"], abs=1)  # the value at the end of the curve


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.58), (1e-9, 3e-9), (2, 2), (0, 0), (-3, 123_457), (2.9, 9.7)])
def test_a_curve_stays_between_a_few_named_values(low, high):
    points = [(0, low), (50, high), (100, low)]
    chart = ElementTree.fromstring(line_chart("Loss", {"training": points}, NUMBER))
    heights = [float(dot.get("y")) for dot in chart.iter("use")][:3]
    lines = [path.get("d").split() for path in chart.iter("path") if "var(--line)" in path.get("style", "")]
    values = [float(line[2]) for line in lines if line[2] == line[5]]
    assert 2 <= len(values) <= 7
    assert min(values) <= min(heights) <= max(heights) <= max(values)


def test_a_picture_has_the_colours_and_letters_of_the_page_and_leaves_no_trace():
    before = dict(matplotlib.rcParams)
    long = [(step, math.sin(step)) for step in range(1000)]
    charts = [line_chart("Loss", {"training": long, "validation": long[::100]}, NUMBER, reference=("guess", 0.7))]
    charts += [seed_chart("Seeds", [tuned([0.7, 0.8]), tuned([0.7, 0.7], is_pretrained=False)], SCORE)]
    for chart in charts:
        assert not re.search("#[0-9a-f]{6}|DejaVu|xmlns|<metadata|<style|<svg[^>]*width=", chart)
        assert {"var(--accent)", "var(--mute)", "var(--line)", "var(--soft)", "var(--font)"} <= set(
            re.findall(r"var\(--\w+\)", chart)
        )
        assert all("fill: var(--" in text.get("style") for text in ElementTree.fromstring(chart).iter("text"))
    assert dict(matplotlib.rcParams) == before


def test_names_in_a_picture_are_text_and_never_formulas_or_markup():
    chart = seed_chart("Seeds", [tuned([0.7, 0.8], method="<b>$x^2$ & 'y'")], SCORE)
    assert "<b>$x^2$ & 'y', pretrained encoder" in [text.text for text in ElementTree.fromstring(chart).iter("text")]


def test_training_does_not_wait_for_the_library_that_draws():
    code = "import sys, minibert.report; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_sharpest_head_is_the_one_that_looks_at_one_word_not_at_a_special_token():
    is_word = torch.tensor([False, True, True, True, False])
    maps = torch.full((2, 3, 5, 5), 0.2)
    maps[0, 1] = torch.tensor([1.0, 0, 0, 0, 0])  # all look at [CLS]
    maps[1, 2, 1:4] = torch.tensor([0.1, 0, 0.8, 0, 0.1])
    assert sharpest(maps, is_word) == (1, 2)


def test_links_name_the_sections_in_their_order(run, tmp_path):
    write_report(run, tmp_path / "r.html", finetuning=[results(tmp_path / "full")])
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    links = re.findall('<a href="#(.*?)">(.*?)</a>', text)
    assert links == re.findall('<h2 id="(.*?)">(.*?)</h2>', text)
    assert [name for name, _ in links] == ["done", "curves", "validation", "finetuning", "masks"]
