"""The steps of the DAG: one file per Prefect task, and the substance of each in a subpackage beside it."""
