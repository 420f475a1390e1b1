"""The page and the JSON API over stored forecasts."""
