"""Binance klines: fetched, verified, stored and accounted for."""
