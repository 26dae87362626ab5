"""What did a run come to? One HTML file with its curves, tables and examples, which needs nothing beside itself.

python -m minibert.report --pretraining RUN --finetuning RUN RUN --output report.html
"""

from collections.abc import Sequence
from pathlib import Path

from minibert.files import write_whole
from minibert.report.examples import SENTENCES, examples
from minibert.report.findings import findings
from minibert.report.finetuning import fine_tuning
from minibert.report.page import render
from minibert.report.pretraining import about_pretraining
from minibert.report.runs import read_finetuning, read_pretraining

__all__ = ["write_report", "write_run_report"]


def write_run_report(run: str | Path) -> Path:
    """Write RUN/report.html for a pretraining run, finished or not, and return its path.

    Raises `UserError` where there is no run, or a file of it is damaged.
    """
    output = Path(run) / "report.html"
    write_report(run, output)
    return output


def write_report(
    pretraining: str | Path,
    output: str | Path,
    *,
    finetuning: Sequence[str | Path] = (),
    title: str | None = None,
    sentences: Sequence[str] = SENTENCES,
) -> None:
    """Write the report of a pretraining run and of the fine-tuning runs that followed to the file `output`.

    Its numbers are those of the files of the runs; equal files give an equal page. What is not there yet is said to be
    missing. Raises `UserError` where a run does not exist, or a file of it is damaged.
    """
    run = read_pretraining(Path(pretraining))
    read = {Path(path): read_finetuning(Path(path)) for path in finetuning}
    tuned = [result for result in read.values() if result is not None]
    page = render(
        title=title or f"Report on {'/'.join(run.path.resolve().parts[-2:])}",
        **about_pretraining(run),
        finetuning=read,
        findings=findings(tuned),
        tasks=fine_tuning(tuned),
        examples=run.checkpoint and examples(run.checkpoint, sentences),
    )
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    write_whole(Path(output), page)
