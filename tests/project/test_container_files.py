"""The container files pass their linters, and name what the image really needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_dockerfile_passes_hadolint() -> None:
    done = run(str(BIN / "hadolint"), str(ROOT / "Dockerfile"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_would_find_a_bad_dockerfile(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN cd /tmp && sudo apt-get install gcc\n")
    assert run(str(BIN / "hadolint"), str(bad)).returncode != 0


def test_compose_file_is_valid() -> None:
    done = run(str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(ROOT / "compose.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "stage", ["COPY tirgemm", "COPY tuning_db", "COPY service", "USER 10001", "HEALTHCHECK", "ARG BASE"]
)
def test_dockerfile_has(stage: str) -> None:
    assert stage in (ROOT / "Dockerfile").read_text()
