"""The phrase that sums up a search: the trials, why it ended and the effort that was asked for."""

from __future__ import annotations

import pytest

from tirgemm.service.views.search_summary_text import search_summary_text
from tirgemm.timings import SearchSummary


@pytest.mark.parametrize(
    ("search", "words"),
    [
        (None, "11"),
        (SearchSummary(11, ended="trials", effort="quick"), "11, the search's budget; effort quick"),
        (
            SearchSummary(11, ended="trials", effort="exhaustive", asked="quick"),
            "11, the search's budget; effort quick",
        ),
        (
            SearchSummary(11, ended="expected_gain", effort="exhaustive", asked="quick", expected_gain=0.0004),
            "11, then the expected gain was under 0.05 %; effort quick, 0.04 % expected of the next batch",
        ),
    ],
)
def test_a_search_is_summed_up_with_the_effort_that_was_asked_for(search: SearchSummary | None, words: str) -> None:
    assert search_summary_text(search, 11) == words
