"""The one error of the library: an impossible request, said in one sentence."""


class ModelError(ValueError):
    """Impossible data, option or model folder; the message says what, where and what to do next."""
