"""The Hugging Face Hub, and the site of the record.

tree       the folder of champions, checked by `cpb verify`
card       the model card
publish    the one commit to a repository
record     the chain's head and month files that go with it, and their comparison with the stored ones
site       the record as a static site with a verifier for strangers
published  forecasts with published models
"""
