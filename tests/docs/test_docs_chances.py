"""What `judging.md` says of the scores of chances is how they are scored."""

import re

from schemas.chances import OUTCOMES, SCORED
from tasks.judging import chance_scores
from tasks.judging.scores import LEVELS
from tests.tools.doc_blocks import ROOT

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
