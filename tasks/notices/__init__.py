"""Telling people: what is worth a message (`findings`), once a day (`told`), through their services (`send`).

Which services: `CPB_NOTIFY`, or a file that only its owner can read (`services`). Nothing here fails or delays a run.
"""
