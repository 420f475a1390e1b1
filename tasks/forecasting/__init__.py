"""Issued forecasts and their realised outcomes, from the champions' models to the ledger.

issue             forecasts of champions, and the random walk's beside each of them, into the store
stored_forecasts  the newest forecasts of a series, and the series that have any
ledger            scores of forecasts whose candle has closed
losses            CRPS, tail loss and coverage of scored rows, for model and reference; one loss per complete forecast
daily             daily sums of the losses
summary           the live record made from the daily sums: small, for page, API and `cpb ledger`
months            month files of forecasts and scores: append-only, each with its own digest
chain             the single write path: a batch of many series, and its line in the market's chain
lines             the chain's format: its lines with their hashes, the canonical form of rows
check_months      damaged months of forecasts and scores, and what does not fit the chain
drift             whether champions still perform as on their test spans: fine, watch or drifted
staleness         candles and forecasts that are too old
"""
