"""`cpb deploy`: the project on a Prefect server of its own on this machine, safe to leave running.

project      the folder whose prefect.yaml counts, the state folder, the environment of the processes
credentials  the password of the API, in a file for its owner alone
services     server and worker as processes: started, found again, stopped
server       entry point of the server process; guard refuses foreign web pages
worker       entry point of the worker process
logfile      logs that do not grow for ever
api          Prefect's client with this deployment's address and credentials
prepare      work pool, GPU limit, deployments
control      `up` and `down`
runs         `run`: ask a deployment for a flow run
liveness     which process a flow run belongs to; runs whose process is gone are ended
status       `status`: what runs, how the last runs ended, what is wrong
stored       the newest candles and forecasts, disk space
units        `unit`: systemd units and cron lines
"""
