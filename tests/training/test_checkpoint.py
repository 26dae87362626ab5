"""A checkpoint is whole or absent, whatever happens while it is written."""

import hashlib
import json
import logging
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from minibert import UserError
from minibert.training import checkpoint
from minibert.training.checkpoint import TrainingState, checkpoints, load_state, newest, save, verify

MOMENTS = {"layer.weight/exp_avg": torch.arange(6.0).reshape(2, 3), "layer.weight/step": torch.tensor(5.0)}


def write_model(directory: Path) -> None:
    (directory / "config.json").write_text('{"hidden_size": 7}\n', encoding="utf-8")
    (directory / "model.safetensors").write_bytes(bytes(range(211)))
    (directory / "vocab.txt").write_text("[PAD]\nthe\n", encoding="utf-8")


def save_step(run: Path, step: int, keep: int = 3, write: Callable[[Path], None] = write_model) -> Path:
    return save(run, TrainingState(step, MOMENTS, {"tokens": step * 11, "scaler": None}), write, keep)


def names(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir())


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    path = save_step(tmp_path, 7)
    assert path == tmp_path / "step-00000007"
    assert sorted(contents(path)) == [
        "config.json",
        "model.safetensors",
        "training/manifest.json",
        "training/optimizer.safetensors",
        "training/state.json",
        "vocab.txt",
    ]
    state = load_state(path)
    assert (state.step, state.extra) == (7, {"tokens": 77, "scaler": None})
    assert state.optimizer.keys() == MOMENTS.keys()
    assert all(torch.equal(state.optimizer[name], tensor) for name, tensor in MOMENTS.items())


def test_the_newest_is_that_of_the_largest_number(tmp_path: Path) -> None:
    for step in (900, 1000):
        save_step(tmp_path, step)
    for name, step in (("step-9", 9), ("step-123456789", 123_456_789)):  # of other widths
        save_step(tmp_path, step, keep=7).rename(tmp_path / name)
    ordered = ["step-9", "step-00000900", "step-00001000", "step-123456789"]
    assert [path.name for path in checkpoints(tmp_path)] == ordered
    assert newest(tmp_path) == tmp_path / "step-123456789"


def test_the_oldest_are_removed(tmp_path: Path) -> None:
    for step in (8, 9, 10, 100):
        save_step(tmp_path, step, keep=2)
    assert names(tmp_path) == ["last", "step-00000010", "step-00000100"]
    assert (tmp_path / "last").readlink() == Path("step-00000100")


def test_one_that_is_damaged_does_not_push_out_one_that_is_whole(tmp_path: Path) -> None:
    for step in (20, 30, 40):
        save_step(tmp_path, step)
    (tmp_path / "step-00000040" / "model.safetensors").write_bytes(b"cut")
    save_step(tmp_path, 50, keep=2)
    assert names(tmp_path) == ["last", "step-00000030", "step-00000040", "step-00000050"]
    save_step(tmp_path, 60, keep=2)
    assert names(tmp_path) == ["last", "step-00000050", "step-00000060"]


def test_a_run_that_goes_on_before_a_damaged_one_keeps_what_it_went_on_from_until_that_is_whole_again(
    tmp_path: Path,
) -> None:
    for step in (9, 10):
        save_step(tmp_path, step)
    (tmp_path / "step-00000010" / "vocab.txt").unlink()

    def fail(directory: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError):
        save_step(tmp_path, 10, keep=1, write=fail)
    assert newest(tmp_path) == tmp_path / "step-00000009"
    assert save_step(tmp_path, 10, keep=1) == newest(tmp_path)
    assert names(tmp_path) == ["last", "step-00000010"]


def test_what_was_just_saved_is_never_removed(tmp_path: Path) -> None:
    """One who goes on from an earlier checkpoint of the run has later ones beside it."""
    for step in (4, 30, 40):
        save_step(tmp_path, step)
    assert save_step(tmp_path, 8, keep=1).is_dir()
    assert (tmp_path / "last").resolve() == tmp_path / "step-00000008"
    assert names(tmp_path) == ["last", "step-00000008", "step-00000030", "step-00000040"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save_step(tmp_path, 4)

    def write_other(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"other")

    path = save_step(tmp_path, 4, write=write_other)
    verify(path)
    assert (path / "model.safetensors").read_bytes() == b"other"
    assert not (path / "vocab.txt").exists()


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_kill_while_a_step_is_replaced_leaves_one_of_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    save_step(tmp_path, 4)
    moves = iter(range(1, 9))

    def killed(path: Path, to: Path) -> Path:
        if next(moves) == moment:
            raise KeyboardInterrupt
        return rename(path, to)

    rename = Path.rename
    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        save_step(tmp_path, 4, keep=1)
    monkeypatch.setattr(Path, "rename", rename)
    found = newest(tmp_path)
    assert found is not None
    assert load_state(found).step == 4
    for _ in range(2):
        assert save_step(tmp_path, 4, keep=1) == newest(tmp_path)
        assert names(tmp_path) == ["last", "step-00000004"]


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "model.safetensors", "vocab.txt"),
        *("training/optimizer.safetensors", "training/state.json", "training/manifest.json"),
    ],
)
def test_a_damaged_file_is_named_and_its_checkpoint_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    good = save_step(tmp_path, 9)
    bad = save_step(tmp_path, 10)
    original = (bad / name).read_bytes()
    flipped = bytearray(original)
    flipped[len(original) // 2] ^= 16
    for content in (original[:-3], b"", bytes(flipped), None):
        (bad / name).unlink()
        if content is not None:
            (bad / name).write_bytes(content)
        with pytest.raises(UserError) as error:
            verify(bad)
        assert str(bad) in str(error.value)
        with pytest.raises(UserError):
            load_state(bad)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert newest(tmp_path) == good
        [record] = caplog.records
        assert record.getMessage() == f"{error.value}; it is passed over"
        (bad / name).write_bytes(original)
    assert newest(tmp_path) == bad


def test_a_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    path, rng = save_step(tmp_path, 3), random.Random(0)
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        original = file.read_bytes()
        places = range(len(original) * 8)
        for place in rng.sample(places, min(61, len(places))):
            damaged = bytearray(original)
            damaged[place // 8] ^= 1 << place % 8
            file.write_bytes(damaged)
            with pytest.raises(UserError):
                verify(path)
        file.write_bytes(original)
    verify(path)


def test_where_none_is_whole_none_is_the_newest(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    (save_step(tmp_path, 3) / "model.safetensors").unlink()
    assert newest(tmp_path) is None


def test_what_is_no_checkpoint_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "model").mkdir()
    for path in (tmp_path / "absent", tmp_path / "file", tmp_path / "model"):
        with pytest.raises(UserError, match=f"{path}/training/manifest.json: not there; expected a checkpoint"):
            verify(path)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("I/O error"), KeyError("x")])
def test_a_failure_while_the_model_is_written_leaves_nothing_and_keeps_what_was(
    tmp_path: Path, error: Exception
) -> None:
    before = contents(save_step(tmp_path, 4))

    def fail(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"half")
        raise error

    with pytest.raises(KeyError if isinstance(error, KeyError) else UserError) as raised:
        save_step(tmp_path, 8, keep=1, write=fail)
    if not isinstance(error, KeyError):
        assert "step-00000008: cannot be written" in str(raised.value)
    assert names(tmp_path) == ["last", "step-00000004"]
    assert contents(tmp_path / "last") == before
    assert newest(tmp_path) == tmp_path / "step-00000004"


@pytest.mark.parametrize("function", ["save_file", "_write_json", "_manifest", "_sync_tree", "_point"])
def test_a_full_disk_at_any_later_moment_keeps_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    before = contents(save_step(tmp_path, 4))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, function, fail)
    with pytest.raises(UserError, match=r"cannot be written .*No space left.* what was saved before is as it was"):
        save_step(tmp_path, 8, keep=1)
    assert not list(tmp_path.glob(".*"))
    assert contents(tmp_path / "last") == before


@pytest.mark.parametrize("room", [100, 1_000, 30_000, 50_000])
def test_a_disk_that_takes_no_more_keeps_what_was(tmp_path: Path, room: int) -> None:
    """A limit on the size of files ends the writing of the model (20,000 bytes) or of the moments (40,000)."""
    [ended] = processes.call_all(_save_with_room_for, str(tmp_path / "run"), room, said=tmp_path / "said", world=1)
    assert ended.code == 0, ended.err
    assert names(tmp_path / "run") == ["last", "step-00000004" if room < 50_000 else "step-00000008"]
    assert newest(tmp_path / "run") == (tmp_path / "run" / "last").resolve()


def _save_with_room_for(run: str, room: int) -> None:
    state = {"layer.weight/exp_avg": torch.arange(10_000.0)}

    def write(directory: Path) -> None:
        save_file({"layer.weight": torch.arange(5_000.0)}, directory / "model.safetensors")

    save(Path(run), TrainingState(4, state, {}), write, keep=1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    if room >= 50_000:
        save(Path(run), TrainingState(8, state, {}), write, keep=1)
        return
    with pytest.raises(UserError, match=r"step-00000008: cannot be written .*File too large.* saved before"):
        save(Path(run), TrainingState(8, state, {}), write, keep=1)


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    left = tmp_path / ".step-00000003.partial" / "training"
    left.mkdir(parents=True)
    (left / "optimizer.safetensors").write_bytes(b"half")
    (tmp_path / ".last.partial").symlink_to("step-00000003")
    assert newest(tmp_path) is None
    save_step(tmp_path, 5)
    assert names(tmp_path) == ["last", "step-00000005"]
    assert (tmp_path / "last").resolve() == tmp_path / "step-00000005"


def test_everything_is_on_disk_before_it_has_its_final_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync, rename = checkpoint._sync, Path.rename
    monkeypatch.setattr(checkpoint, "_sync", lambda path: (synced.append(path.name), sync(path))[1])
    monkeypatch.setattr(Path, "rename", lambda path, to: (synced.append("renamed"), rename(path, to))[1])
    path = save_step(tmp_path, 5)
    before = set(synced[: synced.index("renamed")])
    assert {file.name for file in path.rglob("*")} <= before
    assert ".step-00000005.partial" in before
    assert synced[-1] == tmp_path.name


def test_a_kill_while_an_old_one_is_removed_leaves_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_step(tmp_path, 4)
    remove = shutil.rmtree

    def killed(path: Path, **options: bool) -> None:
        if not path.exists():
            return
        next(file for file in path.rglob("*") if file.is_file()).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        save_step(tmp_path, 8, keep=1)
    monkeypatch.setattr(shutil, "rmtree", remove)
    for path in checkpoints(tmp_path):
        verify(path)
    save_step(tmp_path, 12, keep=1)
    assert names(tmp_path) == ["last", "step-00000012"]


def test_the_manifest_tells_size_and_sha256_of_every_other_file(tmp_path: Path) -> None:
    path = save_step(tmp_path, 1)
    told = json.loads((path / "training" / "manifest.json").read_text(encoding="utf-8"))
    assert told.keys() == contents(path).keys() - {"training/manifest.json"}
    for name, facts in told.items():
        content = (path / name).read_bytes()
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_other_libraries_load_a_checkpoint_as_it_is(pretrained: Path) -> None:
    import transformers

    path = pretrained / "last"
    model = transformers.AutoModel.from_pretrained(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    whole, report = transformers.BertForPreTraining.from_pretrained(path, output_loading_info=True)
    assert not (report["missing_keys"])
    assert not (report["unexpected_keys"])
    assert not (report["mismatched_keys"])
    assert model.config.vocab_size == len(tokenizer) == whole.config.vocab_size == 131
    ids = tokenizer("The red river sees the lamp.", return_tensors="pt")
    assert tokenizer.convert_ids_to_tokens(ids["input_ids"][0])[:3] == ["[CLS]", "the", "red"]
    assert model(**ids).last_hidden_state.shape == (1, ids["input_ids"].size(1), 32)
    assert tokenizer.model_max_length == 48
