"""Does each benchmark run from its first line to its last, at its smallest?"""

import re
from pathlib import Path

import pytest
import torch

SCRIPTS = sorted(path.name for path in (Path(__file__).resolve().parents[2] / "benchmarks").glob("*.py"))
SMALL = ("--tokens=64", "--rounds=1", "--sizes=tiny", "--lengths=32")


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_explains_itself(name, run):
    said = run(name, "--help")
    assert said.startswith("usage:")
    assert f"python benchmarks/{name}" in said


def test_without_a_gpu_the_gpu_benchmark_says_so_and_ends(run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("gpu.py").startswith("There is no GPU here")


def test_checkpoints_are_saved_and_loaded_on_both_sides(run, tmp_path):
    printed = run("checkpoints.py", "--size=tiny", "--rounds=1", f"--folder={tmp_path}")
    assert [cells[0] for cells in table(printed)] == ["save", "load", "MB on disk"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_steps_are_compared(run):
    printed = run("pretraining.py", *SMALL, "--parts=full", "--modern_sizes=tiny")
    names = "tiny, full 32", "tiny, full 32, beside ModernBERT"
    assert [cells[0] for cells in table(printed)] == list(names)
    assert all(number(cell) > 0 for cells in table(printed) for cell in cells[1:] if cell)


@pytest.mark.slow
def test_ragged_texts_of_a_source_are_compared(run, tmp_path):
    source = tmp_path / "texts.txt"
    source.write_text("\n\n".join("word " * length for length in range(3, 41)), encoding="utf-8")
    printed = run("pretraining.py", *SMALL, "--parts=ragged", "--ragged_sizes=tiny", f"--source={source}")
    assert [cells[0] for cells in table(printed)] == [f"tiny, as {tmp_path.name}/texts.txt, at most 32"]


@pytest.mark.slow
def test_the_whole_script_is_compared_with_its_bare_step(run):
    printed = run("pretraining.py", "--tokens=256", "--rounds=1", "--updates=40", "--parts=script")
    [cells] = table(printed)
    assert number(cells[3]) == pytest.approx(100 * number(cells[1]) / number(cells[2]), rel=0.01)


@pytest.mark.slow
def test_the_cost_of_longer_rows_is_told(run):
    printed = run("pretraining.py", "--tokens=2048", "--rounds=1", "--parts=growth")
    explained = [number(cells[3]) for cells in table(printed)]
    assert explained[0] == 100
    assert explained == sorted(explained, reverse=True)


@pytest.mark.slow
def test_the_gpu_benchmark_runs_on_a_cpu(run):
    printed = run("gpu.py", *SMALL, "--device=cpu", "--batches=1")
    assert [cells[0] for cells in table(printed)] == ["tiny, packed 32", "tiny, packed 32, compiled"]
    assert "graph breaks" in printed
    assert "waits for the GPU 0 times" in printed


def table(printed: str) -> list[list[str]]:
    """The cells below the names of the columns."""
    lines = [line.strip("| ").split(" | ") for line in printed.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def number(cell: str) -> float:
    """The first one in a cell."""
    return float(re.findall(r"[\d,.]+", cell)[0].replace(",", ""))
