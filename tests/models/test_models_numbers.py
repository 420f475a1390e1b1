"""Numbers in texts: read by the one convention that all cells allow, refused where two are possible."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpbmodels.data import CURRENCIES
from cpbmodels.data.numbers import NumbersError, read_numbers


def read(*cells, **options):
    return read_numbers({"open": pl.Series(cells, dtype=pl.String)}, **options)["open"].tolist()


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (("94,401.14", "3,364"), [94401.14, 3364.0]),
        (("94.401,14", "3.364"), [94401.14, 3364.0]),
        (("3,364", "0,364"), [3.364, 0.364]),  # no thousands begin with 0
        (("1.234", "12345.5"), [1.234, 12345.5]),  # these thousands are not separated
        (("1,234,567", "3,364"), [1234567.0, 3364.0]),
        (("1 234,5", "1\u202f234,5", "1\xa0234,5"), [1234.5] * 3),
        (("1'234.5", "1\u2019234.5"), [1234.5] * 2),
        (("$94401", "$ 94,401.14", "-$1.5"), [94401.0, 94401.14, -1.5]),
        (("\u20ac 1.234,56", "12,3 \u20ac"), [1234.56, 12.3]),
        (("94401 USD", "1.5USD", "usd 5"), [94401.0, 1.5, 5.0]),
        (("1e-8", "2.5E+3", "+1", ".5", "7."), [1e-8, 2500.0, 1.0, 0.5, 7.0]),
        (("1,5e-8", "3"), [1.5e-8, 3.0]),
        (("", "NaN", "null", "N/A", "-", "2.5"), [None] * 5 + [2.5]),
        (("\ufeff5.5", "5.5\u200b"), [5.5] * 2),
        (("\u22121.5",), [-1.5]),
    ],
)
def test_one_reading(cells, numbers):
    np.testing.assert_array_equal(read(*cells), np.array(numbers, dtype=float))


@pytest.mark.parametrize(
    ("cells", "kind", "row"),
    [
        (("3,364", "2,677", "651"), "two-readings", 0),
        (("651", "3.364"), "two-readings", 1),
        (("94,401.14", "94.401,14"), "two-conventions", 0),
        (("1.5", "1,5"), "two-conventions", 0),
        (("$1", "\u20ac1"), "two-conventions", 0),
        (("1.5", "much"), "no-number", 1),
        (("1.2K",), "no-number", 0),
        (("12,34,567.8",), "no-number", 0),
        (("(5)",), "no-number", 0),
        (("0x10",), "no-number", 0),
        (("1_000",), "no-number", 0),
        (("inf",), "no-number", 0),
        (("1 2",), "no-number", 0),
        (("\u0663",), "no-number", 0),
        (("1\xb2",), "no-number", 0),
        (("$5 EUR",), "no-number", 0),
        (("--5",), "no-number", 0),
        (("1.2.3",), "no-number", 0),
    ],
)
def test_none_or_two_readings_are_refused_with_the_cell(cells, kind, row):
    with pytest.raises(NumbersError) as refused:
        read(*cells)
    first = refused.value.cells[0]
    assert (refused.value.kind, first.column, first.row, first.text) == (kind, "open", row, cells[row])


def test_the_mark_may_be_said_and_the_form_of_a_table_may_exclude_thousands():
    assert read("3,364", decimal="comma") == [3.364]
    assert read("3,364", decimal="point") == [3364.0]
    assert read("3.364", decimal="comma") == [3364.0]
    assert read("3.364", point_is_decimal=True) == [3.364]
    with pytest.raises(NumbersError, match="two-readings"):
        read("3,364", point_is_decimal=True)
    with pytest.raises(NumbersError, match="no-number"):
        read("1.5", decimal="comma")


def test_all_columns_of_a_table_are_written_alike():
    """The volume proves what the prices do not, and the other way round."""
    columns = {"open": pl.Series(["3,364"]), "volume": pl.Series(["9,045,122,443"])}
    assert [v.tolist() for v in read_numbers(columns).values()] == [[3364.0], [9045122443.0]]
    columns["volume"] = pl.Series(["1,5"])
    assert [v.tolist() for v in read_numbers(columns).values()] == [[3.364], [1.5]]
    columns = {"open": pl.Series(["94,401.14"]), "volume": pl.Series(["1,747"])}
    assert [v.tolist() for v in read_numbers(columns).values()] == [[94401.14], [1747.0]]


@pytest.mark.parametrize(
    ("price", "volume", "cell"), [("3,364", "1746.881", "3,364"), ("3000.5", "1,747", "1,747")]
)
def test_a_column_proves_nothing_of_a_sign_that_it_does_not_have(price, volume, cell):
    """Prices scraped as texts and volumes computed by a program may lie in one table."""
    with pytest.raises(NumbersError, match="two-readings") as refused:
        read_numbers({"open": pl.Series([price]), "volume": pl.Series([volume])})
    assert refused.value.cells[0].text == cell


def written(value, mark, group, digits):
    whole, _, fraction = f"{value:.{digits}f}".partition(".")
    if group:
        whole = f"{int(whole):,}".replace(",", group)
    return whole + ({"point": ".", "comma": ","}[mark] + fraction if digits else "")


PRICES = st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(
    PRICES,
    st.sampled_from(["point", "comma"]),
    st.sampled_from(["", " ", "'", "\u202f", "x"]),
    st.integers(0, 6),
    st.sampled_from(["", "$", "\u20ac ", *(f"{code} " for code in CURRENCIES[:3])]),
)
def test_random_numbers_come_back_from_each_convention_or_are_refused(values, mark, group, digits, unit):
    """With the mark said each table comes back; without it, it comes back, or has two readings."""
    group = {"point": ",", "comma": "."}[mark] if group == "x" else group
    cells = [unit + written(value, mark, group, digits) for value in values]
    wanted = [float(f"{value:.{digits}f}") for value in values]
    assert read(*cells, decimal=mark) == wanted
    other = "comma" if mark == "point" else "point"
    try:
        two = read(*cells, decimal=other) != wanted
    except NumbersError:
        two = False
    if two:
        with pytest.raises(NumbersError, match="two-readings"):
            read(*cells)
    else:
        assert read(*cells) == wanted


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 999), st.integers(0, 999)), min_size=1, max_size=20),
    st.sampled_from(".,"),
)
def test_groups_of_three_alone_are_refused_until_one_cell_tells(pairs, mark):
    cells = [f"{whole}{mark}{rest:03d}" for whole, rest in pairs]
    with pytest.raises(NumbersError, match="two-readings"):
        read(*cells)
    other = "," if mark == "." else "."
    assert read(*cells, f"1{mark}5")[:-1] == [float(f"{whole}.{rest:03d}") for whole, rest in pairs]
    assert read(*cells, f"1{other}5")[:-1] == [1000 * whole + rest for whole, rest in pairs]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("0123456789.,' -+eE$KUSD\xa0\u20ac", max_size=12), max_size=8))
def test_any_texts_are_numbers_or_an_error_that_names_a_cell(cells):
    refused = None
    try:
        assert len(read(*cells)) == len(cells)
    except NumbersError as error:
        refused = error
    assert refused is None or refused.cells[0].text == cells[refused.cells[0].row]
