"""`cpb deploy`: run the project on its own Prefect server on this machine, unattended.

project      the project folder with prefect.yaml, the state folder, the password, the environment of the processes
services     the processes server and worker: starting, finding and stopping them; size-limited logs
server       entry point of the server process, which runs behind the guard of `flows/ops`
worker       entry point of the worker process
prepare      work pool, deployments
control      `up` and `down`
runs         `run`: start a flow run of a deployment
liveness     the process of a flow run; ends runs whose process has died
status       `status`: processes, last runs, newest candles and forecasts, disk space, problems
units        `unit`: systemd units and cron lines
"""
