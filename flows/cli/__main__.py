"""`python -m flows.cli`: the same as `cpb`."""

from flows.cli import main

main()
