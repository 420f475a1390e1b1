"""What all coins have in common."""

import weakref

import numpy as np

from cpbmodels.data.cross_section import RETURN_LENGTHS, CoinMoves, CrossSection


def test_only_the_values_of_one_length_are_in_memory_beside_the_result():
    """With those of every length the trainer of a large universe would need twice the memory."""
    coins, times, given, most = 5, np.arange(30), [], []

    def values(n):
        made = np.full(len(times), float(n))
        given.append(weakref.ref(made))
        most.append(sum(ref() is not None for ref in given))
        return made

    section = CrossSection.of(
        [CoinMoves(times, values, values, is_bitcoin=coin == 0) for coin in range(coins)]
    )
    assert np.isfinite(section.values).all()
    assert len(given) > coins * len(RETURN_LENGTHS)
    assert max(most) <= 2 * coins
