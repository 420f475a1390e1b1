"""The Hugging Face Hub: `tree` writes the folder of champions, `publish` commits it to a repository.

`card` writes the model card, `ledger` the published record, and `published` forecasts with published models.
"""
