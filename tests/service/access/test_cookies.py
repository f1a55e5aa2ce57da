"""Cookies of a browser, beside whatever others it has for the same host."""

from __future__ import annotations

import pytest

from tirgemm.service.access.cookies import FORM_COOKIE, KEY_COOKIE, cookie


@pytest.mark.parametrize("theirs", ['{"a": 1}', '"half a quote', "a b=c", "\xe9", ""])
def test_cookies_of_other_servers_at_the_same_host_do_not_hide_ours(theirs: str) -> None:
    headers = [(b"cookie", f"theirs={theirs}; {KEY_COOKIE}=ours; nameless".encode("latin-1"))]
    assert cookie(headers, KEY_COOKIE) == "ours"
    assert cookie(headers, FORM_COOKIE) == ""


@pytest.mark.parametrize("lines", [[b"tirgemm_key=a; tirgemm_key=b"], [b"tirgemm_key=a", b"tirgemm_key=b"]])
def test_a_cookie_that_is_there_twice_is_none(lines: list[bytes]) -> None:
    assert cookie([(b"cookie", line) for line in lines], KEY_COOKIE) == ""
