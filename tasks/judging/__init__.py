"""Judging: scores of forecasts against the reference, their significance, baselines and pictures.

`scores`, `chance_scores`, `inference`: stateless functions of arrays. `baselines`: what models are compared with.
`member`, `classes`: the score of a model, or of a classifier, on a series; `verdicts`: the findings in words,
`accuracy`: those on classifiers. `judges`: the processes that judge, `judge`: what they do, from `forecasts` to
`pictures` and `score_files`. `fleet`: a fleet's scores. `pool`: pooling over coins. `gate`, `paired`: the rules of
promotion. `drift`, `live_interval`: evidence from live forecasts.
"""
