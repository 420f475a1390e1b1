"""What the answers of docs/troubleshooting.md name is what the product has."""

import re

import pytest

from cpbmodels.data import COIN_CURRENCIES
from schemas import coins
from schemas.home import home_folder
from tests.tools.doc_blocks import ROOT

PAGE = (ROOT / "docs/troubleshooting.md").read_text()


def answer(question):
    return PAGE.partition(f"### {question}")[2].partition("\n#")[0]


def test_the_quote_currencies_are_those_that_are_understood():
    told = answer("ETHBTC, or euros").replace("\n", " ")
    money = told.partition("ends in ")[2].partition(" is a pair")[0]
    assert {*re.findall(r"[A-Z]+", money)} == {*coins._QUOTES}
    before = told.partition("`--coins all` before ")[2].partition(".")[0]
    assert {*re.findall(r"[A-Z]+", before)} == {*COIN_CURRENCIES} - {"XBT"}  # which Binance does not have
    for name in ("ETHBTC", "BTCEUR"):
        assert coins.symbol_of(name) == name
    assert f"`{coins.symbol_of('DOTBTC')}`" in told


@pytest.mark.parametrize(
    "variable", ["CPB_HOME", "CPB_KEEP", "CPB_DEPLOY_STATE", "PREFECT_HOME", "MLFLOW_TRACKING_URI"]
)
def test_every_variable_that_moves_data_is_named_where_all_is_deleted(variable):
    table = (ROOT / "docs/install.md").read_text().partition("## Where data goes")[2]
    assert f"`{variable}`" in answer("How do I delete everything?")
    assert f"`{variable}`" in table


def test_what_is_removed_is_where_cpb_writes_by_default(monkeypatch):
    from flows.deploy.services import state_folder

    for name in ("CPB_HOME", "CPB_DEPLOY_STATE", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    removed = re.search(r"^rm -rf (.*?) +#", answer("How do I delete everything?"), re.MULTILINE)[1].split()
    assert [home_folder().name, "mlruns", state_folder().name] == removed
