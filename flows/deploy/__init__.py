"""`cpb deploy`: run the project on its own Prefect server on this machine, unattended.

services     the processes server and worker: folders, password, environment; starting, finding and stopping them; logs
server       entry point of the server process, which runs behind the guard of `flows/ops`
worker       entry point of the worker process
control      `up` and `down`
runs         `run`: start a flow run of a deployment
liveness     work pool, deployments, missed runs; the process of a flow run; ends runs whose process has died
status       `status`: processes, last runs, newest candles and forecasts, disk space, problems
"""
