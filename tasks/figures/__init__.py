"""Figures: frames, arrays and plain records in, a plotly figure as a plain dict out, ready for JSON.

The same figures serve the page, the backtest's report and the file of a flow run in MLflow. `theme`: colours, light
and dark. `forecast`: candles with a fan. `record`: what came true over time, and decisions. `board`: ratios with
intervals, by architecture, coin and pair. `calibration`: reliability, PIT, skill by step. `training`: losses, equity.
`page`: a page of figures in one file. plotly itself is not imported: its bundle for browsers draws the dicts, and the
tests check them against its schema.
"""
