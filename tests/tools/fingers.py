"""Fingers on a page, as the browser's own input: it decides between scrolling and the page's events."""

STEPS = 8
"""Moves of a finger between two places."""


class Fingers:
    """Touches a page of a context with `has_touch`; places are (x, y) in pixels of the window."""

    def __init__(self, page):
        self._page = page
        self._session = page.context.new_cdp_session(page)

    def _send(self, kind, places=()):
        points = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(places)]
        self._session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    def drag(self, *paths, lift=True):
        """Move a finger along each path, all at once; `lift` false: they stay on the screen."""
        self._send("touchStart", [path[0] for path in paths])
        for k in range(1, STEPS * (len(paths[0]) - 1) + 1):
            self._send("touchMove", [_along(path, k / STEPS) for path in paths])
            self._page.wait_for_timeout(16)  # a frame
        if lift:
            self.lift()

    def tap(self, x, y):
        """Touch and leave a place."""
        self.drag([(x, y)])

    def lift(self):
        """End all touches."""
        self._send("touchEnd")


def _along(path, at):
    """Return the place on a path through equally spaced points."""
    i = min(int(at), len(path) - 2)
    return tuple(a + (at - i) * (b - a) for a, b in zip(path[i], path[i + 1], strict=True))
