"""The kinds of chances that are scored against the random walk's, in the order of tables."""

SCORED = {
    "touch": "the chances of a touch",
    "first": "the chances of a target before a stop",
    "above": "the chances of a close above a price",
}
"""What is scored with interval, test and deciles, in words."""

OUTCOMES = "first_outcomes"
"""The score of target first, stop first and neither: the sum of the three squared differences."""
