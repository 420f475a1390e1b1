"""Binance klines: fetched, verified, stored and recorded in a manifest.

`ingest.ingest` updates the store, `store.read_klines` reads it, `verify.verify` checks it.
"""
