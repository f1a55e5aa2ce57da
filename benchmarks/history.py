"""The commits that results files name, held against the history of this checkout."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path

from tirgemm.bench.results import git_output


@dataclass(frozen=True)
class History:
    """The history of the checkout at ``root``."""

    root: Path

    @cached_property
    def unknown(self) -> str:
        """Why commits cannot be looked up here; empty where they can."""
        shallow = git_output(self.root, "rev-parse", "--is-shallow-repository")
        if shallow == "false":
            return ""
        return "this clone is shallow: git fetch --unshallow" if shallow else "this copy has no git history"

    def problem(self, commit: str | None, at: str | None) -> str:
        """What is wrong with a row that was measured at a commit and a time, as a sentence; empty where nothing is."""
        if not commit or not at:
            return "it does not say at which commit and when"
        if self.unknown:
            return ""
        committed = _committed(self.root, commit)
        if committed is None:
            return f"its commit {commit} is no ancestor of this checkout's"
        if datetime.fromisoformat(at) < committed:
            return f"it was measured at {at}, before its commit {commit[:12]} was made"
        return ""


@cache
def _committed(root: Path, commit: str) -> datetime | None:
    """When an ancestor of HEAD was made; None of what is none."""
    if git_output(root, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        return None
    return datetime.fromisoformat(git_output(root, "show", "--no-patch", "--format=%cI", commit) or "")
