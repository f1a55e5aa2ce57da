"""Digits of times and rates on the pages."""

from __future__ import annotations

import pytest

from tirgemm.service.pages.figure_texts import tflops_text, us_text


@pytest.mark.parametrize(
    ("us", "text"),
    [(None, "–"), (0.4321, "0.432"), (7.156, "7.156"), (12.5, "12.50"), (123.45, "123.5"), (1234567.89, "1,234,568")],
)
def test_a_time_has_about_four_digits(us: float | None, text: str) -> None:
    assert us_text(us) == text


@pytest.mark.parametrize(
    ("tflops", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (2.1e-7, "0.000000210"),
        (0.000244, "0.000244"),
        (12.34, "12.3"),
        (989.5, "990"),
        (999.6, "1,000"),
        (29543.2, "29,543"),
    ],
)
def test_a_rate_is_never_a_power_of_ten(tflops: float | None, text: str) -> None:
    assert tflops_text(tflops) == text
