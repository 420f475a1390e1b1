"""How steps run: what makes one, side by side in threads and in processes that stay, and how far they are."""
