"""What many tests share: the folder of real text beside the repository, where there is one."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the repository; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the real data in {SHARED}, which is not here")
    return SHARED
