"""Forecasts that are issued and what came true of them, from the champions' models to the ledger.

issue      forecasts of champions, into the store
store      forecast rows: append, read, latest, stored
ledger     scores of forecasts whose candle has closed, and hit rates
months     the files behind both: a month each, rows only added, digests recorded
staleness  candles and forecasts that are too old
verify     damaged files of a market, found and set aside
"""
