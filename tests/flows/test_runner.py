import threading

from flows.runner import Direct


class Step:
    """Stands where a Prefect task stands: the plain function is `fn`."""

    def __init__(self, fn):
        self.fn = fn


def test_one_failing_call_stops_no_other():
    def halve(x):
        if x % 2:
            raise ValueError(f"{x} is odd")
        return x // 2

    outcomes = Direct().each(Step(halve), [(2,), (3,), (4,)], workers=2)
    assert [o.value for o in outcomes] == [1, None, 2]
    assert [str(o.error) if o.error else None for o in outcomes] == [None, "3 is odd", None]


def test_calls_run_side_by_side():
    meet = threading.Barrier(2, timeout=30)
    outcomes = Direct().each(Step(lambda: meet.wait() >= 0), [(), ()], workers=2)
    assert all(o.value for o in outcomes)
