"""Studies that were run once, by hand, from a clone: `python -m research.NAME --help`. Not installed with cpb."""
