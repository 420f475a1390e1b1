"""Judging: scores of forecasts against the reference, their significance, baselines and pictures.

`scores`, `inference`: stateless functions. `member`, `classes`: the score of a model on a series. `pool`: pooling
over coins. `baselines`, `fitted`: forecasters to compare with. `fleet`: scores of a trained fleet, stored in its
folders. `gate`: the rules of promotion. `pictures`: figures.
"""
