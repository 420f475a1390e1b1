"""Files: written whole, locked, with a digest; model folders and the light wheel."""
