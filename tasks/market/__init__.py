"""Binance klines: fetched, verified, stored and recorded in a manifest.

`ingest.ingest` updates the store, `klines.read_klines` reads it.
"""
