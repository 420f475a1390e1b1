"""The Hugging Face Hub.

tree       the folder of champions, checked by `cpb verify`
card       the model card
publish    the one commit to a repository
record     the chain, its rows as JSON lines and a verifier for people without cpb, in that folder
"""
