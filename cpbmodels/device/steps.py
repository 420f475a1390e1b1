"""One training step of every architecture at its seed size: where it runs, how long it takes, what it holds.

A step is measured as the difference between a long and a short training of the same fleet, so that set-up,
warm-up, graph capture and validation cancel out.
"""

SEED_PRESETS = {
    "transformer": "seed-transformer",
    "gru": "seed-gru",
    "classifier-gru": "seed-gru",
    "lstm": "seed-lstm",
    "lstm-manual": "seed-lstm",
}
