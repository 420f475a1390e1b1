"""The web page and the JSON API for stored forecasts."""
