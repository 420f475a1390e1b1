"""The Hugging Face Hub: `build_tree` writes the folder of champions, `publish` makes it one commit of a repository.

`model_card` and `verdict` say what the models are worth; `check_ready` finds a wrong name or a missing token early.
"""

from tasks.hub.card import model_card, verdict
from tasks.hub.publish import Published, check_ready, publish
from tasks.hub.tree import build_tree

__all__ = ["Published", "build_tree", "check_ready", "model_card", "publish", "verdict"]
