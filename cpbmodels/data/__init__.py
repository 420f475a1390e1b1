"""Candles as models read them: checked tables, causal columns, windows; forecasts as rows. No torch."""
