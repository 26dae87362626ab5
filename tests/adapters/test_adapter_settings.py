"""A kind and its settings on the command line become its config, or one line that names what is wrong."""

from dataclasses import dataclass, field
from typing import get_args, get_type_hints

import pytest

from minibert import UserError, cli
from minibert.adapters import (
    AdapterSettings,
    BitFitConfig,
    FrozenConfig,
    HoulsbyConfig,
    LoraConfig,
    PfeifferConfig,
)
from minibert.adapters.kinds import KINDS


@dataclass(frozen=True)
class Run:
    adapter: AdapterSettings = field(default_factory=AdapterSettings)


def parse(*options):
    return cli.parse(Run, options).adapter.config()


def test_every_kind_has_its_defaults():
    configs = (FrozenConfig(), BitFitConfig(), LoraConfig(), PfeifferConfig(), HoulsbyConfig())
    assert [AdapterSettings(kind=config.kind).config() for config in configs] == list(configs)
    assert AdapterSettings().config() is None


def test_the_kinds_of_the_command_line_are_those_of_the_registry():
    assert get_args(get_type_hints(AdapterSettings)["kind"]) == ("full", *KINDS)


def test_options_reach_the_config():
    options = ["--adapter.kind", "lora", "--adapter.rank", "3", "--adapter.alpha", "6", "--adapter.dropout", "0.1"]
    options += ["--adapter.targets", "[query, down]", "--adapter.rank_stabilised", "true"]
    assert parse(*options) == LoraConfig(3, 6.0, 0.1, ("query", "down"), True)
    assert parse("--adapter.kind=pfeiffer", "--adapter.reduction=4") == PfeifferConfig(reduction=4)
    assert parse("--adapter.kind=houlsby", "--adapter.activation=silu") == HoulsbyConfig(activation="silu")
    assert parse() is None


def test_a_yaml_file_reaches_the_config(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("adapter: {kind: lora, rank: 5, targets: [up]}\n", encoding="utf-8")
    assert parse("--config", str(path)) == LoraConfig(rank=5, targets=("up",))
    assert parse("--config", str(path), "--adapter.rank=7") == LoraConfig(rank=7, targets=("up",))


def test_settings_survive_being_written_and_read(tmp_path):
    run = Run(AdapterSettings(kind="lora", rank=5, targets=["up"]))
    (tmp_path / "run.yaml").write_text(cli.to_yaml(run), encoding="utf-8")
    assert cli.parse(Run, ["--config", str(tmp_path / "run.yaml")]) == run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--adapter.kind=pfeiffer", "--adapter.rank=8"], "adapter.rank has no meaning for pfeiffer, only for lora"),
        (["--adapter.rank=8"], "adapter.rank has no meaning for full, only for lora"),
        (
            ["--adapter.kind=bitfit", "--adapter.reduction=8"],
            "adapter.reduction has no meaning for bitfit, only for pfeiffer and houlsby",
        ),
        (["--adapter.kind=lora", "--adapter.targets=[]"], r"adapter.targets: expected some of query, .*, got \[\]"),
        (["--adapter.kind=lora", "--adapter.dropout=1"], "adapter.dropout: expected 0 or more and less than 1, got 1"),
        (["--adapter.kind=lore"], "adapter.kind"),
        (["--adapter.kind=lora", "--adapter.rank=0"], "adapter.rank"),
        (["--adapter.kind=lora", "--adapter.targets=[pooler]"], "adapter.targets"),
        (["--adapter.kind=lora", "--adapter.rnk=2"], "adapter.rnk"),
    ],
)
def test_what_makes_no_sense_is_named_by_its_dotted_path(options, message):
    with pytest.raises(UserError, match=message):
        parse(*options)
