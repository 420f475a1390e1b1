"""Notifications: `findings` creates events, `event` limits them to once a day, `services` sends them.

The services come from `CPB_NOTIFY` or a file that only its owner can read (`services`). Nothing here fails or delays a
run.
"""
