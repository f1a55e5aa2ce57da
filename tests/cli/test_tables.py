"""Tables on consoles of any width: what is shown is whole, and fits."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tirgemm._terminal import console
from tirgemm._terminal.tables import Column, Fields, Paragraph, Table, wrapped

WORDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789.,:=-_µ×語", min_size=1, max_size=24)
CELLS = st.lists(WORDS, max_size=8).map(" ".join)


def printed(table: object, width: int, encoding: str = "utf-8") -> list[str]:
    said = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=said, width=width, highlight=False, markup=False).print(table, crop=False)
    said.seek(0)
    return said.read().splitlines()


def assert_fits(lines: list[str], width: int) -> None:
    """No line is wider than ``width``, unless it is one word that is; none ends with spaces."""
    for line in lines:
        assert cell_len(line) <= width or len(line.split()) == 1, (width, line)
        assert line == line.rstrip()


@settings(deadline=None)
@given(st.data(), st.integers(8, 200), st.integers(1, 6))
def test_every_word_of_every_cell_is_shown_whole_in_lines_that_fit(
    data: st.DataObject, width: int, columns: int
) -> None:
    heads = [data.draw(WORDS.map(lambda word: f"head{word}")) for _ in range(columns)]
    rows = data.draw(st.lists(st.tuples(*[CELLS] * columns), max_size=4))
    table = Table(*(Column(head, number=bool(at % 2)) for at, head in enumerate(heads)), title="what it is")
    for row in rows:
        table.add_row(*row)
    lines = printed(table, width)
    assert_fits(lines, width)
    shown = Counter(" ".join(lines).split())
    wanted = Counter(word for row in rows for cell in row for word in cell.split())
    assert wanted - shown == Counter()


def table() -> Table:
    actual = Table("name", ">count", "what it is", Column("extra", optional=1), Column("least", optional=2), title="T")
    actual.add_row("first", "1,000,000", "a sentence of some words that can wrap", "seldom asked for", "least of all")
    actual.add_row("second", "7", "short", "x", Text("y", style="bold"))
    return actual


def test_a_table_that_fits_is_one_line_a_row_with_numbers_to_the_right() -> None:
    assert printed(table(), 200) == [
        "T",
        "name        count  what it is                              extra             least",
        "─" * 89,
        "first   1,000,000  a sentence of some words that can wrap  seldom asked for  least of all",
        "second          7  short                                   x                 y",
    ]


def test_words_wrap_first_then_optional_columns_go_by_name_then_rows_become_blocks() -> None:
    wraps = printed(table(), 72)
    assert len(wraps) > 5
    assert "least" in wraps[1]
    fewer = printed(table(), 50)
    assert fewer[1].split() == ["name", "count", "what", "it", "is", "extra"]
    assert fewer[-1] == "Not shown in 50 columns of text: least."
    fewest = printed(table(), 35)
    assert fewest[-2:] == ["Not shown in 35 columns of text:", "extra, least."]
    turned = printed(table(), 24)
    assert turned[:3] == ["T", "name        first", "count       1,000,000"]
    assert turned[-5:] == ["name        second", "count       7", "what it is  short", "extra       x", "least       y"]
    for width in (72, 50, 35, 24, 5):
        assert_fits(printed(table(), width), width)


def test_a_row_that_does_not_fill_the_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="a row has 1 cells; the table has 2 columns"):
        Table("a", "b").add_row("1")


def test_a_value_without_room_beside_its_name_comes_below_it_whole() -> None:
    key = "x" * 30
    assert printed(Fields([("key", key), ("none", ""), ("name", "a b")]), 34) == [
        "key",
        f"  {key}",
        "name  a b",
    ]
    assert printed(Fields([("key", key)]), 30) == ["key", key]
    assert printed(Paragraph("one two three", indent=2), 9) == ["  one two", "  three"]


def test_the_rule_is_of_what_the_encoding_has() -> None:
    assert set(printed(Table("a"), 20, "ascii")[1]) == {"-"}
    assert set(printed(Table("a"), 20)[1]) == {"─"}


def test_words_break_where_they_are_apart_and_indents_stay() -> None:
    assert [line.plain for line in wrapped(Text("  ab cd\n\nefghij k"), 5)] == ["  ab", "cd", "", "efghij", "k"]


def test_stdout_has_the_width_of_columns_and_a_pipe_has_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "word " * 100
    monkeypatch.delenv("COLUMNS", raising=False)
    console.out.print(words, style="bold")
    console.out.print(table())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == words.strip()
    assert lines[1:] == printed(table(), 1000)
    for columns in ("30", "90"):
        monkeypatch.setenv("COLUMNS", columns)
        console.out.print(words)
        console.out.print(table())
        lines = capsys.readouterr().out.splitlines()
        assert_fits(lines, int(columns))
        assert len(lines[0]) > int(columns) - 5
    monkeypatch.setenv("COLUMNS", "none")
    console.out.print("[bold]", words, "x" * 300)
    assert capsys.readouterr().out == f"[bold] {words} {'x' * 300}\n"
