"""Findings of tests as sentences."""

from collections.abc import Mapping


def relation(low: float, high: float, p: float, alpha: float = 0.05) -> str:
    """Return "better than", "worse than" or "no different from", of a ratio's interval and p.

    A difference is claimed only if p is under `alpha` and the interval excludes 1.
    """
    if p < alpha and high < 1:
        return "better than"
    return "worse than" if p < alpha and low > 1 else "no different from"


def shown_p(p: float) -> str:
    """Return a p-value as text for messages."""
    return f"p={p:.3f}" if p >= 0.001 else "p<0.001"


def pair_verdict(first: str, second: str, ratio: float, p: float, n: int) -> str:
    """Return the finding about two models' losses on the same `n` forecasts (`pool.compare_pair`) as a sentence."""
    return f"{first} is {relation(ratio, ratio, p)} {second} (CRPS ratio {ratio:.4f}, {shown_p(p)}, n={n:,})"


def verdict(metrics: Mapping[str, float]) -> str:
    """Return the finding as a sentence: better than, worse than or no different from the reference (see `relation`).

    Args:
        metrics: of a member or a pool (`test_…`), with the Holm-corrected p if the correction has been applied. A
            classifier has `test_accuracy`; its reference is the class frequencies of the training span.
    """
    ratio, low, high = (metrics[f"test_crps_ratio{end}"] for end in ("", "_low", "_high"))
    p, classes = metrics.get("test_p_holm", metrics["test_p"]), "test_accuracy" in metrics
    against = "the class frequencies" if classes else "the random walk with EWMA volatility"
    finding = relation(low, high, p)
    # Only if the interval alone would say something else.
    over = metrics.get("test_p_holm_models", 1) if finding.startswith("no ") and not low <= 1 <= high else 1
    corrected = f" corrected over {over:.0f} models" if over > 1 else ""
    return (
        f"{finding} {against} ({'RPS' if classes else 'CRPS'} ratio {ratio:.4f} "
        f"[{low:.4f}, {high:.4f}], {shown_p(p)}{corrected}, n={int(metrics['test_n']):,})"
    )
