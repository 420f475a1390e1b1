"""Figures: from frames, arrays and plain records to a plotly figure as a plain dict, ready for JSON.

The web page and the backtest's report use the same figures. `forecast`: candles with a fan chart. `board`: ratios with
intervals, pairs, losses. `judged`: report sections, reliability, skill by step. `over_time`: records, decisions.
`plot`: what figures are made of; `themes`: their colours. `page`: a page in a single file. plotly itself is not
imported: its browser bundle draws the dicts, and the tests check them against its schema.
"""
