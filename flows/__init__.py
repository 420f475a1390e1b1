"""The DAGs, one file each, and the command line: wiring only."""
