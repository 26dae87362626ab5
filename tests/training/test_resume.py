"""From where a run goes on, and what it refuses."""

from pathlib import Path

import pytest
import yaml

from minibert import UserError
from minibert.training.checkpoint import TrainingState, save
from minibert.training.resume import find, refuse_changes

CONFIG = {"corpus": "a", "model": {"hidden_size": 7, "id2label": None}, "training": {"steps": 40, "workers": 0}}


def save_step(run: Path, step: int) -> Path:
    return save(run, TrainingState(step, {}, {}), lambda path: (path / "weights").touch(), keep=9)


def test_auto_goes_on_from_the_newest_whole_checkpoint(tmp_path: Path) -> None:
    assert find("auto", tmp_path / "absent") is None
    assert find("auto", tmp_path) is None
    first, second = save_step(tmp_path, 9), save_step(tmp_path, 10)
    assert find("auto", tmp_path) == second
    (second / "weights").unlink()
    assert find("auto", tmp_path) == first


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_anew(tmp_path: Path) -> None:
    for step in (9, 10):
        (save_step(tmp_path, step) / "weights").unlink()
    with pytest.raises(UserError, match=f"{tmp_path}: none of its 2 checkpoints is whole; choose another output"):
        find("auto", tmp_path)


def test_never_refuses_where_there_is_something_to_lose(tmp_path: Path) -> None:
    assert find("never", tmp_path) is None
    (tmp_path / ".step-00000003.partial").mkdir()
    assert find("never", tmp_path) is None
    path = save_step(tmp_path, 9)
    with pytest.raises(UserError, match=f"{tmp_path}: holds 1 checkpoints; resume them"):
        find("never", tmp_path)
    (path / "weights").unlink()  # damaged, but there
    with pytest.raises(UserError, match="holds 1 checkpoints"):
        find("never", tmp_path)


def test_a_path_is_taken_where_it_is_whole(tmp_path: Path) -> None:
    path = save_step(tmp_path / "other", 9)
    assert find(str(path), tmp_path / "run") == path
    assert find(str(tmp_path / "other" / "last"), tmp_path / "run") == tmp_path / "other" / "last"
    (path / "weights").write_bytes(b"more")
    with pytest.raises(UserError, match=f"{path}/weights: 4 bytes, expected 0"):
        find(str(path), tmp_path / "run")
    with pytest.raises(UserError, match=r"last/weights: 4 bytes, expected 0"):
        find(str(tmp_path / "other" / "last"), tmp_path / "run")
    with pytest.raises(UserError, match=r"absent/training/manifest\.json: not there"):
        find(str(tmp_path / "absent"), tmp_path / "run")
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"last/training/manifest\.json: not there"):
        find(str(tmp_path / "other" / "last"), tmp_path / "run")


def test_each_changed_field_is_listed_with_both_values(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    changed = {"corpus": "b", "model": {"hidden_size": 11, "id2label": None}, "training": {"steps": 41, "workers": 2}}
    with pytest.raises(UserError) as error:
        refuse_changes(tmp_path, changed, {"corpus", "training.workers"})
    expected = "the run to resume had another config: model.hidden_size was 7, is 11; training.steps was 40, is 41"
    assert str(error.value) == f"{tmp_path}: {expected}"


def test_changes_that_are_allowed_are_listed_in_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    refuse_changes(tmp_path, CONFIG, set(), allowed=True)
    assert caplog.messages == []
    changed = {"corpus": "b", "model": {"hidden_size": 11, "id2label": None}, "training": {"steps": 41, "workers": 0}}
    refuse_changes(tmp_path, changed, {"corpus"}, allowed=True)
    expected = "goes on with another config:\n  model.hidden_size was 7, is 11\n  training.steps was 40, is 41"
    assert caplog.messages == [f"{tmp_path} {expected}"]


def test_fields_that_are_new_or_gone_count_as_changed(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    with pytest.raises(UserError, match=r"corpus was 'a', is None; model.width was None, is 7"):
        refuse_changes(tmp_path, {**_without("corpus"), "model": {**CONFIG["model"], "width": 7}}, set())


def test_free_fields_may_change_alone_or_by_group(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    refuse_changes(tmp_path, CONFIG, set())
    changed = {**CONFIG, "corpus": "b", "training": {"steps": 1, "workers": 3}}
    refuse_changes(tmp_path, changed, {"corpus", "training"})
    with pytest.raises(UserError, match=r"training\.steps"):
        refuse_changes(tmp_path, changed, {"corpus", "training.workers", "train"})
    refuse_changes(tmp_path / "absent", changed, set())


def _without(name: str) -> dict[str, object]:
    return {key: value for key, value in CONFIG.items() if key != name}


@pytest.mark.parametrize("content", [b"[", b"just a word", b"\xff\xfe"])
def test_a_damaged_config_of_the_run_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"config.yaml: damaged; expected the config that the run began with"):
        refuse_changes(tmp_path, CONFIG, free=set())
