"""`cpb deploy`: run the project on its own Prefect server on this machine, unattended.

services     `up`, `down`, `run`; the server's process, which runs behind the guard of `flows/ops`
worker       the worker's process: Prefect's own, which ends with its server
status       `status`: processes, last runs, newest candles and forecasts, free disk space, problems
"""
