"""Forecasts that are issued and what came true of them, from the champions' models to the ledger.

issue          forecasts of champions, into the store
reference      the random walk's forecast beside each of them
store          forecast rows: append, read, latest, stored
ledger         scores of forecasts whose candle has closed
losses         what a score says: CRPS, tails and coverage, of model and reference
daily          their sums per day
summary        the live record made of those: small, for page, API and `cpb ledger`
evidence_rows  one loss for each whole forecast, for the promotion gate and the drift watch
months         the files behind forecasts and scores: a month each, rows only added, digests recorded
chain          the single write path: a batch of many series, and its line in the market's chain
lines          the chain's form: its lines with their hashes, the canonical form of rows
commit         how a batch gets into place, also where the process is killed
index          the recorded sha256 of a series' month files
watch          the state of each champion: fine, watch or drifted
check_drift    what the watch looks at after a scoring
fallback       a robust HAR in place of a champion that has drifted
staleness      candles and forecasts that are too old
verify         the manifest of a market's forecasts and scores; damaged files are found and set aside
read_isolated  bytes that no digest vouches for, compared in a process that may die of it
"""
