"""A file under its name is whole: it is written aside, and renamed."""

import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Put `content` (text as UTF-8, LF as it stands) there in one step: a kill leaves the old file or the new one."""
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("wb") as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
