"""Prices and chances of `cpb forecast`."""

import re

import pytest

from schemas.errors import UsageError
from schemas.forecasting import parse_chances, parse_prices


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
    "text",
    [
        *("98,500", "98,500.5", "1,234,567", "98,500,105000", "105000,98,500", "1,234,50"),
        *(" 98,500", "98,500 ", "105000, 98,500", "98,500 ,105000"),
    ],
)
def test_thousands_and_a_list_are_not_told_apart(text):
    with pytest.raises(UsageError, match="can be read as one price or as several: write") as caught:
        parse_prices(text)
    assert caught.value.code == "touch"


@pytest.mark.parametrize(
    ("text", "prices"),
    [("98,500", [98, 500]), ("98,500.5", [98, 500.5]), ("105000,1,234,567", [1, 234, 567])],
)
def test_both_ways_out_of_grouped_thousands_are_read(text, prices):
    with pytest.raises(UsageError) as caught:
        parse_prices(text)
    one, several = re.search("write (.+) for one, (.+) for several", str(caught.value)).groups()
    assert parse_prices(one) == [float(text.removeprefix("105000,").replace(",", ""))]
    assert parse_prices(several) == prices


@pytest.mark.parametrize(
    ("text", "grouped", "plain"), [("98,000", "98,000", "98000"), ("97500,1,000,000", "1,000,000", "1000000")]
)
def test_thousands_of_which_a_part_is_no_price_have_one_way_out(text, grouped, plain):
    with pytest.raises(UsageError) as caught:
        parse_prices(text, option="touch")
    assert str(caught.value) == f"touch {grouped!r} has a comma, which separates prices: write {plain}"
    assert len(parse_prices(plain)) == 1


@pytest.mark.parametrize(
    ("text", "chances"),
    [
        ("5%", [0.05]),
        (".05", [0.05]),
        ("0.05", [0.05]),
        ("5 %", [0.05]),
        ("2.5%, .1 ,25%", [0.025, 0.1, 0.25]),
        ("0.5%", [0.005]),
    ],
)
def test_chances_are_read_with_and_without_a_percent_sign(text, chances):
    assert parse_chances(text) == chances


@pytest.mark.parametrize("text", ["5", "1", "2.5", "99", ".05,5"])
def test_a_chance_that_may_be_of_a_hundred_or_of_one_is_refused(text):
    with pytest.raises(UsageError, match=r"can be read as .* % or as .* %: write") as caught:
        parse_chances(text)
    percent, share = re.search("write (.+) or (.+)$", str(caught.value)).groups()
    assert parse_chances(percent) == parse_chances(share)


@pytest.mark.parametrize(
    "text", ["0", "100", "100%", "0%", "-5%", "150", "inf", "nan", "x", "", "%", "5%%", "5%,"]
)
def test_what_is_no_chance_is_one_sentence(text):
    with pytest.raises(UsageError, match=r"is no chance between 0 and 1: write 5% or \.05") as caught:
        parse_chances(text)
    assert (caught.value.code, caught.value.field) == ("chance", "stop_chance")
