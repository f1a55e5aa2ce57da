"""Blocks of pages as the newcomer takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.newcomer.newcomer import Disagreement, Newcomer
from tests.newcomer.pages import Block, all_pages, blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = all_pages(ROOT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_every_page_says_whether_it_is_run(page: Path) -> None:
    listed = list(blocks(page, ROOT))
    assert len(listed) == page.read_text().count("\n```") // 2


def _page(folder: Path, text: str) -> list[Block]:
    page = folder / "page.md"
    page.write_text(text)
    return list(blocks(page, folder))


def test_commands_are_joined_and_comments_left_out(tmp_path: Path) -> None:
    (block,) = _page(tmp_path, "x\n\n```sh\n# words\necho a \\\n  b   # c\n\ncat <<'E'\n# kept\nE\n```\n")
    assert block.commands() == ["echo a b   # c", "cat <<'E'\n# kept\nE"]


def test_a_block_that_does_not_say_what_it_is_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.md:1: a block of no language"):
        _page(tmp_path, "```\nwhat a command prints\n```\n")
    with pytest.raises(ValueError, match="known are clone"):
        _page(tmp_path, "<!-- run: sometimes -->\n\n```sh\nls\n```\n")
    (block,) = _page(tmp_path, "<!-- run: output -->\n\n```\nwhat a command prints\n```\n")
    assert not block.is_run


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "```sh\nexport WORD=told\ncd ..\n```\n\n```python\nimport os\n\nassert os.environ['WORD'] == 'told'\n```\n",
            None,
        ),
        ("```sh\nfalse\n```\n", "it ended with 1"),
        ("```sh\necho 'error: no'\n```\n", "it printed 'error:'"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", "it ended with 1"),
        ("```sh\necho 'a  cut val…'\n```\n", "it cut a value"),
        ("```sh\nprintf 'a  b%90sc  d\\n' ' '\n```\n", "wider than 80"),
        ("<!-- run: gpu -->\n\n```sh\necho fine\n```\n", "ended with 0 although"),
        ("<!-- run: gpu -->\n\n```sh\necho 'no GPU is here' && false\n```\n", None),
        ("<!-- run: gpu -->\n\n```sh\nfalse\n```\n", "without saying"),
        ("<!-- run: terminal -->\n\n```sh\necho listening on http://x; sleep 60\n```\n\n```sh\ntrue\n```\n", None),
        ("<!-- run: terminal -->\n\n```sh\nfalse\n```\n", "did not come"),
    ],
)
def test_a_line_that_does_not_do_what_it_says_is_told(
    terminal: bool, text: str, fault: str | None, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    home = tmp_path / "home"
    home.mkdir()
    with (tmp_path / "transcript").open("w") as transcript:
        newcomer = Newcomer(terminal, tmp_path, home, transcript)
        if fault is None:
            newcomer.read(page, home)
        else:
            with pytest.raises(Disagreement, match=fault):
                newcomer.read(page, home)
