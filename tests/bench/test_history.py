"""Commits that rows name: ancestors, others, times before them, checkouts that cannot tell, and changed ones."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.history import History
from tests.helpers.scripts import script
from tirgemm import Device
from tirgemm.bench.results import environment

ROOT = Path(__file__).resolve().parents[2]
WHEN = "2026-03-01T12:00:00+00:00"


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    dates = {"GIT_AUTHOR_DATE": WHEN, "GIT_COMMITTER_DATE": WHEN, "PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": "/"}
    command = ["git", "-C", str(folder), *names, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=dates).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two commits, and a branch beside the second."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    for branch in ("main", "main", "other"):
        if branch == "other":
            git(folder, "checkout", "--quiet", "-b", "other", "HEAD^")
        git(folder, "commit", "--quiet", "--allow-empty", "--message", branch)
    git(folder, "checkout", "--quiet", "main")
    return folder


def test_a_commit_is_an_ancestor_and_older_than_the_row(checkout: Path) -> None:
    history = History(checkout)
    assert history.unknown == ""
    first, other = git(checkout, "rev-parse", "HEAD^"), git(checkout, "rev-parse", "other")
    assert history.problem(first, "2026-03-01T12:00:01+00:00") == ""
    assert "before its commit" in history.problem(first, "2026-03-01T11:59:59+00:00")
    for commit in (other, f"{first}-dirty", "0" * 40):
        assert history.problem(commit, WHEN) == f"its commit {commit} is no ancestor of this checkout's"
    assert "at which commit" in history.problem(None, WHEN)
    assert "at which commit" in history.problem(first, None)


@pytest.mark.parametrize("name", ["zero_shot_folds", "proposal_sources", "effort_replay"])
def test_what_is_replayed_from_records_names_its_commit_too(checkout: Path, tmp_path: Path, name: str) -> None:
    document = json.loads((ROOT / "benchmarks" / "results" / "nvidia-h200" / f"{name}.json").read_text())
    document["environment"]["commit"] = "0" * 40
    (path := tmp_path / f"{name}.json").write_text(json.dumps(document))
    assert script("benchmarks/check.py").faults(path, history=History(checkout)) == [
        f"1 rows: its commit {'0' * 40} is no ancestor of this checkout's"
    ]


def test_a_shallow_clone_and_a_copy_without_history_say_that_they_cannot_tell(checkout: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{checkout}", "shallow")
    assert "shallow" in History(tmp_path / "shallow").unknown
    assert History(tmp_path / "shallow").problem("0" * 40, WHEN) == ""
    (tmp_path / "copy").mkdir()
    assert History(tmp_path / "copy").unknown == "this copy has no git history"
    assert History(tmp_path / "copy").problem("0" * 40, WHEN) == ""
    assert History(tmp_path / "copy").problem(None, WHEN) != ""


def test_what_programs_write_does_not_make_a_commit_dirty_and_a_changed_source_does(checkout: Path) -> None:
    device = Device("cpu", "x86-64-v3", "Some CPU", 3, 2**33)
    results, page, source = (checkout / path for path in ("benchmarks/results/a.json", "docs/results.md", "kernel.py"))
    for path in (results, page, source):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "files")
    commit = git(checkout, "rev-parse", "HEAD")
    results.write_text("after")
    page.write_text("after")
    assert environment(device, checkout)["commit"] == commit
    source.write_text("after")
    assert environment(device, checkout)["commit"] == f"{commit}-dirty"
    assert environment(device, checkout / "missing")["commit"] is None
