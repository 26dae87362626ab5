"""From YAML and the command line to one frozen dataclass; a user's mistake becomes one line and exit code 2."""

import argparse
import dataclasses
import difflib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

import yaml
from jsonargparse import ArgumentError, ArgumentParser, set_parsing_settings

from minibert.errors import UserError

Config = TypeVar("Config")

set_parsing_settings(docstring_parse_attribute_docstrings=True)


class _Dumper(yaml.SafeDumper):
    """Quotes text such as 1e5, which YAML 1.1 takes for text without quotes, and our parser for a number."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


def run(main: Callable[[Config], None], config_class: type[Config], argv: Sequence[str] | None = None) -> None:
    """Read `config_class` from `--config FILE.yaml` and `--dotted.field value`, then call `main` with it.

    Exits with 2 and one line on standard error for what the user got wrong (an option, a file, a row), with 130 when
    the user interrupts. Any other exception is ours and keeps its traceback.
    """
    _accept_every_letter()
    try:
        main(parse(config_class, sys.argv[1:] if argv is None else argv))
    except UserError as error:
        stop(str(error), code=2)
    except KeyboardInterrupt:
        stop("interrupted", code=130)


def parse(config_class: type[Config], argv: Sequence[str]) -> Config:
    """The dataclass that the arguments describe: defaults, then the YAML files, then the options; the later wins.

    Raises `UserError` with the dotted path of the field and what was expected there.
    """
    parser = _parser(config_class)
    try:
        files, options = _take_config_files(argv)
        texts = [_read_config_file(Path(file), config_class) for file in files]
        namespace = parser.parse_args([*(f"--config={text}" for text in texts), *options])
    except ArgumentError as error:
        raise UserError(_one_line(str(error), parser)) from None
    fields = parser.instantiate(namespace).as_dict()
    fields.pop("config", None)
    config = config_class(**fields)
    _refuse_nulls(config)
    return config


def to_yaml(config: Any) -> str:
    """The resolved config as YAML that `--config` reads back to an equal object."""
    plain = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def stop(message: str, code: int) -> NoReturn:
    """End the process with one line on standard error."""
    rank = int(os.environ.get("RANK", "0"))
    where = "error" if rank == 0 else f"error on process {rank}"
    print(f"{where}: {' '.join(message.split())}", file=sys.stderr, flush=True)
    sys.exit(code)


def _parser(config_class: type) -> ArgumentParser:
    summary = (config_class.__doc__ or "").strip()
    parser = ArgumentParser(description=summary, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="YAML file of the run; the options below override it")
    parser.add_class_arguments(config_class)
    return parser


def _accept_every_letter() -> None:
    """Print what the terminal's encoding lacks as an escape: help and messages hold Greek letters and file names."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _take_config_files(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files of --config, and all other arguments."""
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    reader.add_argument("--config", action="append", default=[])
    found, others = reader.parse_known_args(argv)
    return found.config, others


def _read_config_file(file: Path, config_class: type) -> str:
    """The YAML text of a file, read as UTF-8 whatever the locale: the parser itself would follow the locale."""
    try:
        text = file.read_text(encoding="utf-8")
        given = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"config: {file}: expected a YAML file in UTF-8 ({reason})") from None
    if not isinstance(given, dict):
        raise UserError(f"config: {file}: expected fields and their values, got {given!r}")
    _refuse_scalar_groups(given, config_class, f"{file}: ")
    # in ASCII, since the parser first asks the file system whether this is a path
    return str(yaml.serialize(yaml.compose(text, yaml.SafeLoader), Dumper=yaml.SafeDumper))


def _refuse_scalar_groups(given: dict[str, Any], config_class: type, where: str) -> None:
    """Refuse `optim: 3` where `optim` is a group of fields: the parser would silently take the defaults."""
    for field in dataclasses.fields(config_class):
        if not (isinstance(field.type, type) and dataclasses.is_dataclass(field.type) and field.name in given):
            continue
        group = given[field.name]
        if not isinstance(group, dict):
            raise UserError(f"{where}{field.name}: expected a group of fields, got {group!r}")
        _refuse_scalar_groups(group, field.type, f"{where}{field.name}.")


def _refuse_nulls(config: Any, where: str = "") -> None:
    """Refuse `steps: null` where there must be a number: the parser would let it pass."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            _refuse_nulls(value, f"{where}{field.name}.")
        elif value is None and field.type is not Any and type(None) not in get_args(field.type):
            raise UserError(f"{where}{field.name}: expected a value, got null")


def _one_line(message: str, parser: ArgumentParser) -> str:
    message = re.sub(r'Parser key "([^"]+)":\s*', r"\1: ", message)
    message = re.sub(r"<class '(\w+)'>", r"\1", message)
    message = re.sub(r"a typing\.Literal\[(.*?)\]", r"one of \1", message)
    message = re.sub(
        r"Not of type \w+: (\S+) does not conform to restriction (.+)", r"expected a value v with \2, got \1", message
    )
    message = re.sub(r"Not of type PositiveInt: .*: '(.*)'", r"expected a positive whole number, got \1", message)
    return " ".join(message.split()) + _suggestion(message, parser)


def _suggestion(message: str, parser: ArgumentParser) -> str:
    """The option that was probably meant, where the message is about one that does not exist."""
    wrong = _unknown_option(message)
    if wrong is None:
        return ""
    known = [action.dest for action in parser._actions if action.dest not in ("help", "print_config")]
    meant = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
    return f" (did you mean {meant[0]}?)" if meant else ""


def _unknown_option(message: str) -> str | None:
    if found := re.search(r"unrecognized arguments: --([^\s=]+)", message):
        return found[1]
    if found := re.search(r"Group '([^']+)' does not accept option '([^']+)'", message):
        return f"{found[1]}.{found[2]}"
    if found := re.search(r"Option '([^']+)' is not accepted", message):
        return found[1]
    return None
