"""`cpb deploy`: run the project on its own Prefect server on this machine, unattended.

services     `up`, `down`, `run`; the server's process, which runs behind the guard of `flows/ops`
status       `status`: processes, last runs, newest candles and forecasts, free disk space, problems
"""
