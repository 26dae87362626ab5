"""How fast is a checkpoint saved and loaded, beside the files of a Trainer of transformers?

    python benchmarks/checkpoints.py [--size mini] [--rounds 5] [--folder DIR]

Model and optimizer, after one step, on the disk of `--folder`; ours as pretrain/train.py does it, the peer with
`save_pretrained` and `torch.save`. Both take turns in one process. Prints a table in Markdown.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from parts.checkpointing import disk_size, minibert_side, transformers_side
from parts.encoders import Setting
from parts.shapes import SIZES
from parts.table import heading, lines
from parts.turns import in_turns, ratio

NOTES = """\
Medians of {rounds} turns of the MB on disk a second, and how many times as fast as the peer. Minibert's checkpoint is
on the disk when it has its name (fsync), and holds a SHA-256 of each file, which loading compares; the peer leaves the
disk to the system, and compares nothing; "synced" are its files with fsync. What is loaded was just written, and is
read from memory."""


def main() -> None:
    given = arguments()
    print(heading(f"benchmarks/checkpoints.py --size {given.size} --rounds {given.rounds}"), end="\n\n", flush=True)
    with TemporaryDirectory(dir=given.folder) as folder:
        for line in lines(("", "minibert, MB/s", "transformers", "transformers, synced"), rows(given, Path(folder))):
            print(line, flush=True)
    print("\n" + NOTES.format(rounds=given.rounds))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="mini")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the checkpoints go; without, where temporary files do")
    return parser.parse_args()


def rows(given: argparse.Namespace, folder: Path) -> Iterator[list[str]]:
    setting = Setting(SIZES[given.size], 128)
    sides = {
        "minibert": minibert_side(setting, folder / "ours"),
        "transformers": transformers_side(setting, folder / "peer"),
        "synced": transformers_side(setting, folder / "synced", synced=True),
    }
    for work in ("save", "load"):
        rates = in_turns({name: getattr(side, work) for name, side in sides.items()}, given.rounds)
        ours, *others = (f"{median(found) / 1e6:,.0f}" for found in rates.values())
        yield [work, f"{ours} ({ratio(rates['minibert'], rates['transformers']):.2f} x)", *others]
    yield ["MB on disk", *(f"{disk_size(side.folder) / 1e6:,.0f}" for side in sides.values())]


if __name__ == "__main__":
    main()
