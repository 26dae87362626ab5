"""What many tests share: the folder of real text, a tiny corpus, a tiny pretrained encoder, the scripts as modules."""

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import processes
import pytest
import small
import torch

from minibert.data.corpus import PrepareConfig, build_corpus

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def ctrl_c() -> None:
    """Let Ctrl-C reach processes: where a shell runs the tests in the background, they inherit that it is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the repository; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the real data in {SHARED}, which is not here")
    return SHARED


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus of 83 documents from a little grammar, nine of them for validation."""
    folder = tmp_path_factory.mktemp("corpus")
    text = small.write_text(folder / "text.txt")
    build_corpus(
        PrepareConfig(sources=[str(text)], output=str(folder / "corpus"), vocab_size=131, validation_share=0.11)
    )
    return folder / "corpus"


@pytest.fixture(scope="session")
def pretrained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of pretrain/train.py that nobody disturbed; not to be changed."""
    folder = tmp_path_factory.mktemp("pretrained")
    ended = processes.run(
        processes.PRETRAIN,
        f"--corpus={corpus}",
        f"--output={folder / 'run'}",
        *small.PRETRAINING,
        said=folder / "said",
    )
    assert ended.code == 0, ended.err
    return folder / "run"


@pytest.fixture(scope="session")
def script() -> Callable[[Path], ModuleType]:
    """Makes a module of a script, so that its functions can be called."""

    def load(path: Path) -> ModuleType:
        name = f"{path.parent.name}_{path.stem}"
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[name] = module
        return sys.modules[name]

    return load


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A start from nothing for accelerate, which remembers its first settings, on the CPU and one thread."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    def forget() -> None:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
            del os.environ[name]

    threads = torch.get_num_threads()
    forget()
    os.environ["ACCELERATE_USE_CPU"] = "true"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    yield
    forget()
    torch.set_num_threads(threads)
