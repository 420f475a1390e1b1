"""The Hugging Face Hub: the tree of model folders, the model card, and the one commit."""

from tasks.hub.card import model_card, verdict
from tasks.hub.publish import Published, check_ready, publish
from tasks.hub.tree import build_tree

__all__ = ["Published", "build_tree", "check_ready", "model_card", "publish", "verdict"]
