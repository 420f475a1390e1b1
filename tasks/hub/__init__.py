"""The Hugging Face Hub: `tree` writes the folder of champions, `publish` makes it one commit of a repository.

`card` says what the models are worth.
"""
