"""`cpb verify`: reads every stored file by its normal reader, and repairs nothing.

verification  one run over a market, or over all
computed      candles, feature files, and the members of trained shards by their seals (`tasks.storage.sealed`)
record        forecasts and scores by their chain
models        champions by the digests of their registration, and the packaged folder
home          the version, the MLflow store, `results.json`
checks        one check of a file, and what all of them share
"""
