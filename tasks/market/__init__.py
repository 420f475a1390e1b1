"""Binance klines: fetched, verified, stored and recorded in a manifest.

`ingest.update_store` updates the store, `klines.read_klines` reads it.
"""
