"""A few flips per kind of file, none of them silent; `FLIPS=120 pytest … -rP` is the long form and prints the table."""

import os
import random

import bitflips
import pytest

FLIPS = int(os.environ.get("FLIPS", "3"))
VALUES_ONLY = ("klines", "records")  # padding and blanks change nothing, and are not named


@pytest.mark.parametrize(
    "name",
    ["klines", "features of a trainer", "features of the step", "weights of champions", "config of champions",
     "weights of fleets", "config of fleets", "scores of fleets", "forecasts", "records"],
)  # fmt: skip
def test_no_flipped_bit_changes_a_result_without_a_word(stored, name):
    kinds = bitflips.kinds(stored)
    tally = bitflips.try_kind(stored, kinds[name], FLIPS, random.Random(name))
    print(f"{name}: {tally}")
    assert (tally.flips, tally.silent) == (FLIPS, 0)
    assert tally.reading + tally.harmless == FLIPS
    if name not in VALUES_ONLY:
        assert tally.verify >= tally.reading > 0


def test_every_kind_is_tried(stored):
    assert len(bitflips.kinds(stored)) == 10


def test_a_silent_change_would_be_counted(stored):
    kind = bitflips.kinds(stored)["forecasts"]
    told = bitflips.Kind(kind.files, lambda: kind.files()[0].read_bytes(), kind.verify, kind.folders)
    assert bitflips.try_kind(stored, told, 2, random.Random(1)).silent == 2
