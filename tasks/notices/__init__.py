"""Telling people: what is worth a message (`findings`), once a day (`event`), through their services (`services`).

Which services: `CPB_NOTIFY`, or a file that only its owner can read (`services`). Nothing here fails or delays a run.
"""
