"""Prices of `cpb forecast --touch`."""

import re

import pytest

from schemas.errors import UsageError
from schemas.forecasting import parse_prices


@pytest.mark.parametrize(
    ("texts", "prices"),
    [
        (["98000,105000"], [98000, 105000]),
        (["98.0,500"], [98, 500]),
        (["98, 500"], [98, 500]),
        (["98", "500"], [98, 500]),  # given apart, as in a query
        (["1234,500"], [1234, 500]),
        (["0.5,0.025"], [0.5, 0.025]),
        (["1e-5,2e-5"], [1e-5, 2e-5]),
    ],
)
def test_a_list_of_prices(texts, prices):
    assert parse_prices(*texts) == prices


@pytest.mark.parametrize(
    "text", ["98,500", "98,500.5", "1,000,000", "98,500,105000", "105000,98,500", "1,234,50"]
)
def test_thousands_and_a_list_are_not_told_apart(text):
    with pytest.raises(UsageError, match="can be read as one price or as two: write") as caught:
        parse_prices(text)
    assert caught.value.code == "touch"


def test_both_ways_out_of_grouped_thousands_are_read():
    with pytest.raises(UsageError) as caught:
        parse_prices("98,500")
    one, two = re.search("write (.+) for one, (.+) for two", str(caught.value)).groups()
    assert (parse_prices(one), parse_prices(two)) == ([98_500], [98, 500])
