"""The Hugging Face Hub.

packaged       the folder `HOME/hub` follows the registry
tree           that folder: models, card, results, library, record, checksums; checked by `cpb verify`
card           the model card
publish        the one commit to a repository, or to the Space of a page
page           a page of files in a folder, and what it says of itself
record_export  the chain, its rows as JSON lines and a verifier for people without cpb, in that folder
restore        the way back from it
"""
