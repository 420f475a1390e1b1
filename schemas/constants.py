"""Figures that several parts of the project must agree on, each defined once."""

import math
from datetime import timedelta

from cpbmodels.figures import EMBARGO, HORIZON, SEGMENT_JUMP, WARMUP

__all__ = [
    "EMBARGO",
    "FILE_JUMP",
    "HORIZON",
    "RELISTING_JUMP",
    "SEGMENT_JUMP",
    "STOPPED_AFTER",
    "WARMUP",
]

STOPPED_AFTER = timedelta(days=14)
"""A coin whose newest candle is this far behind the newest of its market has stopped trading: that is no failure."""

RELISTING_JUMP = math.log(5)
"""|ln(open / close before)| across a pause of a day or more beyond which it is another coin under the old name.

Higher than `SEGMENT_JUMP`: a coin may well triple while it is not traded, and this only explains a hole in a report;
the features start anew after every hole, whatever the price did.
"""

FILE_JUMP = 1.1
"""|ln(open / close before)| between two adjoining source files beyond which one of them holds another symbol.

About ln 3, as `SEGMENT_JUMP`, but a figure of its own: it decides which files are refused, not how features are cut.
"""
