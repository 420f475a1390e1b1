"""The DAGs, a file each, and the command line: wiring only."""
