"""What `judging.md` says of the scores of chances is how they are scored, and README's figures are those measured."""

import re

import pytest

from schemas.chances import OUTCOMES, SCORED
from tasks.judging import chance_scores
from tasks.judging.scores import LEVELS
from tests.tools.doc_blocks import ROOT

README, RESULTS = (ROOT / "README.md").read_text(), (ROOT / "docs/results.md").read_text()
JUDGING = (ROOT / "docs/judging.md").read_text()


def test_the_pairs_and_prices_of_the_scores_are_those_of_the_page():
    told = JUDGING.partition("target and stop at ")[2].partition(" times the walk's median")[0]
    pairs = [tuple(map(float, pair)) for pair in re.findall(r"\(([\d.]+), ([\d.]+)\)", told)]
    assert pairs == [*chance_scores.PAIRS]
    touched = JUDGING.partition("to which that walk gives ")[2].partition(" %")[0]
    assert [int(n) / 100 for n in re.findall(r"\d+", touched)] == [*chance_scores.CHANCES]
    assert "at the walk's 10, 20, … 90 % quantiles" in JUDGING
    assert [round(100 * LEVELS[place]) for place in chance_scores.DECILES] == [*range(10, 100, 10)]


def test_every_score_of_a_chance_that_the_page_names_exists():
    names = {f"test_{of}_brier{end}" for of in (*SCORED, OUTCOMES) for end in ("", "_ratio")}
    names |= {f"test_{of}_p" for of in SCORED}
    told = {*re.findall(rf"`(test_(?:{'|'.join(SCORED)})_\w+)`", JUDGING)}
    assert told == names


@pytest.mark.parametrize(
    ("section", "row"),
    [
        ("Target or stop, and closes above a price", "target before stop within ten hours"),
        ("The chance of a touch", "1h"),
    ],
)
def test_the_gains_that_the_readme_names_are_those_of_the_results(section, row):
    table = RESULTS.partition(f"### {section}\n")[2].partition("\n#")[0]
    cells = re.search(rf"^\| {row} \|.*", table, re.MULTILINE)[0]
    ratio = re.search(r"\*\*([\d.]+)\*\*", cells)[1]
    anchor = re.sub(r"[^\w -]", "", section.lower()).replace(" ", "-")
    told = re.search(rf"\[([\d.]+) % below a random walk's\]\(docs/results.md#{anchor}\)", README)
    assert told[1] == f"{100 * (1 - float(ratio)):.1f}"
    assert re.search(r"\| 100 % \|", cells)  # "lower on each of the 20 coins"
    chances = re.findall(r"([\d.]+)/([\d.]+)", cells)
    assert len(chances) == 10
    assert max(abs(float(stated) - float(came)) for stated, came in chances) < 1  # "less than one point"
