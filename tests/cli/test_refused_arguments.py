"""Arguments that commands refuse with a sentence and exit code 2: empty and unreadable names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command_line import Run, own_folders


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_folders(tmp_path, monkeypatch)


@pytest.mark.parametrize("named", ["", " ", "d\udcfe"], ids=["empty", "blank", "not UTF-8"])
@pytest.mark.parametrize(
    "command",
    [
        ("keys", "create", "ci"),
        ("tune", "64x64x64", "--effort", "none"),
        ("verify", "k.tirgemm"),
        ("serve", "--no-worker", "--port", "0"),
        ("worker",),
    ],
    ids=lambda words: words[0],
)
def test_data_folder_without_a_usable_name_is_refused(
    run: Run, tmp_path: Path, command: tuple[str, ...], named: str
) -> None:
    code, out, err = run(*command, "--data", named)
    assert (code, out) == (2, "")
    assert "Invalid value for '--data'" in err
    assert ("it is empty" if not named.strip() else "is not UTF-8 text") in err
    assert list(tmp_path.iterdir()) == [], "nothing is made"
