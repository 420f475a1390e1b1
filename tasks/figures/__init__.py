"""Figures: from frames, arrays and plain records to a plotly figure as a plain dict, ready for JSON.

The web page, the backtest's report and the artifact of a flow run in MLflow use the same figures. `theme`: colours,
light and dark. `forecast`: candles with a fan chart. `record`: scores over time, and decisions. `board`: ratios with
intervals, by architecture, coin and pair. `calibration`: reliability, skill by step. `training`: losses.
`judged`: report sections. `page`: an HTML page of figures in a single file. plotly itself is not imported: its browser
bundle draws the dicts, and the tests check them against its schema.
"""
