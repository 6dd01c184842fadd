"""stub"""

from pathlib import Path


def save_all(folder: Path, archive: Path) -> None: ...
