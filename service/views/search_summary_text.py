"""Phrases that summarise a search on pages and in the terminal: trials, reason for its end, effort, expected gain."""

from __future__ import annotations

from tirgemm.timings import SearchEnd, SearchSummary
from tirgemm.tuning.effort import Effort

_ENDED: dict[SearchEnd, str] = {
    "trials": ", the search's budget",
    "seconds": ", then the search's seconds were over",
    "complete": ", all that its effort tries",
    "exhausted": ", all that there are",
    "interrupted": ", then the search was interrupted",
    "shipped": ", of shipped records, with no search",
}


def search_summary_text(search: SearchSummary | None, trials: int) -> str:
    """``24, then the expected gain was under 0.5 %; effort standard``; the trials alone where there was no search."""
    if search is None:
        return str(trials)
    ended = "" if search.ended is None else _ENDED.get(search.ended, "")
    known = Effort(search.effort) if search.effort in list(Effort) else None
    if search.ended == "expected_gain":
        ended = f", then the expected gain was under {100 * known.least_gain:g} %" if known else ", then it was little"
    effort = search.asked or search.effort
    words = f"{trials}{ended}" + (f"; effort {effort}" if effort else "")
    gain = search.expected_gain
    return words if gain is None else f"{words}, {100 * gain:.2g} % expected of the next batch"
