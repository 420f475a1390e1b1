"""Files that are whole or absent, locks, records with a digest, and URLs without credentials."""
