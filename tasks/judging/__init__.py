"""Judging: scores of forecasts against the reference, their significance, baselines and pictures.

`scores`, `inference`: stateless functions. `member`, `classes`: the score of one model on one series. `pool`: pooling
over coins. `baselines` and the files named after them: forecasters to compare with. `fleet`: scores of a trained fleet,
written beside it. `gate`, `recipe`: the rules of promotion. `pictures`: figures.
"""
