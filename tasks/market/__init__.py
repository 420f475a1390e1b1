"""Binance klines: fetched, verified, stored and accounted for.

`ingest.ingest` brings the store up to date, `store.read_klines` reads it, `verify.verify` checks it.
"""
