"""Judging: scores of forecasts against the reference, their significance, baselines and pictures.

`scores`, `inference`: stateless functions, and the baselines. `fitted`: baselines that are fitted. `member`: the score
of a model or classifier on a series. `judge`: the processes that judge. `fleet`: a fleet's scores, stored in its
folders. `pool`: pooling over coins. `drift`: evidence against a champion. `gate`: the rules of promotion. `pictures`:
figures.
"""
