"""What a path or glob given by a user means."""

from __future__ import annotations

import glob
from pathlib import Path


def expand(pattern: str) -> list[Path]:
    """Files that `pattern` names, sorted by path; relative to the current directory, `~` allowed.

    A literal reading wins: the file of exactly that name, else folders of exactly those names, else
    brackets as part of a name; only then are brackets a glob's character class.
    """
    path = Path(pattern).expanduser()
    if path.is_file():
        return [path]
    folder = existing_folder(path)
    rest = str(path.relative_to(folder))
    literal_brackets = rest.replace("[", "[[]")
    for attempt in (literal_brackets, rest):
        # Path.glob would also match hidden files, such as another process's unfinished ones.
        found = glob.glob(str(Path(glob.escape(str(folder))) / attempt), recursive=True)  # noqa: PTH207
        files = {Path(name) for name in found if Path(name).is_file()}
        if files:
            return sorted(files, key=Path.as_posix)
    return []


def existing_folder(path: Path) -> Path:
    """The deepest folder above `path` that exists; the current one for a bare name."""
    return next((parent for parent in path.parents if parent.is_dir()), Path())
