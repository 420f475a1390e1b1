"""Files: written whole, locked, with a digest; model folders and the light wheel.

files, folders     written whole, or not at all; a full disk is `DiskFull`
locks              exclusive access; `process_ids`, `interrupts`: who holds it, and waits that Ctrl-C ends
records            what steps hand on, on disk; `arrays` in npz files
sealed             the digests of a folder's files, by which each is known as the one that was written
model_folder       a model with its scores; `packaged` those that serve, `recipes` what decides one, `wheel` its library
source_code        the digest of code; `home_version` that of the home's format
urls               texts without passwords
"""
