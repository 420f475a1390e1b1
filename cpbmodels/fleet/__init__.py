"""Fleets: K models of one architecture as one [K, P] matrix, their training, their members and forecasts."""
