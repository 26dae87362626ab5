"""The report of a pretraining run and the fine-tuning runs that followed.

python -m minibert.report --pretraining RUN --finetuning RUN RUN --output report.html
"""

import argparse
from collections.abc import Sequence

from minibert import UserError, cli
from minibert.report import write_report
from minibert.report.examples import SENTENCES


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the report and say where it is; one line and exit code 2 for what the user got wrong."""
    parser = argparse.ArgumentParser("minibert.report", description=__doc__, allow_abbrev=False)
    parser.add_argument("--pretraining", metavar="RUN", required=True, help="a pretraining run, finished or not")
    parser.add_argument("--output", metavar="FILE", required=True, help="the HTML file to write")
    parser.add_argument("--finetuning", metavar="RUN", nargs="*", default=(), help="fine-tuning runs")
    parser.add_argument("--title", help="heading of the page; the name of the pretraining run by itself")
    parser.add_argument("--sentences", nargs="*", default=SENTENCES, help="sentences with [MASK] to fill, in quotes")
    given = parser.parse_args(arguments)
    try:
        write_report(**vars(given))
    except UserError as error:
        cli.stop(str(error), code=2)
    print(given.output)


if __name__ == "__main__":
    main()
