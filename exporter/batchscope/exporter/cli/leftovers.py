"""A start that fails leaves nothing behind: what was not there before it goes again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from batchscope.schemas.ring.folder import control_folder, is_held, unlink


@contextmanager
def none_of(*, rings: Path | None, store: Path) -> Iterator[None]:
    """Removes, when what is inside raises, the files and empty folders that it made."""
    files = [store, store.with_name(f"{store.name}.wal")]
    if rings is not None:
        files.append(control_folder(rings) / "exporter.lock")
    new_files = [path for path in files if not path.exists()]
    new_folders = _missing(files)
    try:
        yield
    except BaseException:
        _remove(new_files, new_folders)
        raise


def _missing(files: Iterable[Path]) -> list[Path]:
    """Folders above these files that are not there, the deepest first."""
    above = {folder for path in files for folder in path.parents if not folder.exists()}
    return sorted(above, key=lambda folder: len(folder.parts), reverse=True)


def _remove(files: Iterable[Path], folders: Iterable[Path]) -> None:
    for path in files:
        if not is_held(path):  # another one may have come between
            unlink(path)
    for folder in folders:
        with suppress(OSError):  # not empty: an engine has come meanwhile
            folder.rmdir()
