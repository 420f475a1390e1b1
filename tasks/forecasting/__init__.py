"""Issued forecasts and their realised outcomes, from the champions' models to the ledger.

issue       forecasts of champions, and the random walk's beside each of them, into the store
score       realised closes of due forecasts; CRPS, tail loss and coverage of scored rows, for model and reference
record      scores what is due; the live record, small, for page, API and `cpb ledger`, from `daily_sums`
months      month files of forecasts and scores: append-only, each with its own digest; the newest forecasts
chain       the single write path: a batch of many series, and its line in the market's chain; what does not fit it
lines       the chain's format: its lines with their hashes, the canonical form of rows
published   what the published record has, and how a home goes back to it
chances     `price_chances`: of prices, by the table of the model that forecast; `alerts`: that one has passed a limit
outlook     what each champion's newest forecast says in a line
staleness   candles and forecasts that are too old
watch       whether champions still perform as on their test spans: fine, watch or drifted
"""
