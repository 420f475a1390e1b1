"""Servers of cpb, all of which run in their command's own process, behind one guard.

serve       `run_server` runs an application; `half_sent` is its HTTP, which ends requests that never become whole
guard       checks every request; `listeners` has the rules of each server, `passwords` their password files
ports       keeps a server's port from other users
logs        bounds what a server writes
mlflow_ui   MLflow's interface
"""
