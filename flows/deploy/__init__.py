"""`cpb deploy`: the project on a Prefect server of its own on this machine, safe to leave running.

project      the folder whose prefect.yaml counts, the state folder, the password, the environment of the processes
services     server and worker as processes: started, found again, asked, stopped; logs that do not grow for ever
server       entry point of the server process, which runs behind the guard of `flows/ops`
worker       entry point of the worker process
prepare      work pool, GPU limit, deployments
control      `up` and `down`
runs         `run`: ask a deployment for a flow run
liveness     which process a flow run belongs to; runs whose process is gone are ended
status       `status`: what runs, how the last runs ended, newest candles and forecasts, disk space, what is wrong
units        `unit`: systemd units and cron lines
"""
