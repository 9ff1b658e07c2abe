"""The counter-based generator: published vectors, prefixes, ranges, and moments."""

from __future__ import annotations

import pytest
import torch

from mapping_core.random import RandomStream, philox4x32

# Known-answer vectors of the reference implementation Random123 (kat_vectors, philox4x32 10).
PI_COUNTER = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
KNOWN = [
    ((0,) * 4, (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (PI_COUNTER, (0xA4093822, 0x299F31D0), "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
DRAWS = ["words", "signs", "uniform", "normal"]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_published_vectors(counter: tuple[int, ...], key: tuple[int, int], words: str) -> None:
    """The cipher gives the published words for the published counters and keys."""
    made = philox4x32(torch.tensor(counter), key)
    assert " ".join(f"{word:08x}" for word in made.tolist()) == words


def test_counters_are_independent_of_their_batch() -> None:
    """Many counters at once give what each gives alone."""
    counters = torch.randint(0, 2**32, (3, 5, 4), generator=torch.Generator().manual_seed(0))
    together = philox4x32(counters, (1, 2))
    assert torch.equal(together[2, 4], philox4x32(counters[2, 4], (1, 2)))
    assert together.min() >= 0
    assert together.max() < 2**32


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 31, 33, 100])
def test_a_shorter_draw_is_a_prefix(draw: str, count: int) -> None:
    """Number i does not depend on how many are drawn, odd counts and none at all included."""
    stream = RandomStream(3, stream=1, purpose=2)
    short, long = getattr(stream, draw)(count), getattr(stream, draw)(257)
    assert short.shape == (count,)
    assert torch.equal(short, long[:count])


@pytest.mark.parametrize("draw", DRAWS)
def test_threads_change_nothing(draw: str) -> None:
    """One thread and three give the same bits."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = getattr(RandomStream(5), draw)(100_003)
        torch.set_num_threads(3)
        three = getattr(RandomStream(5), draw)(100_003)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, three)


def test_torch_seeding_is_neither_used_nor_moved() -> None:
    """Draws ignore torch's global generator and leave it where it is."""
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = RandomStream(9).normal(64)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(RandomStream(9).normal(64), first)


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 8},
        {"seed": 7 + 2**32},
        {"seed": 2**64 - 1},
        {"seed": 7, "stream": 1},
        {"seed": 7, "stream": 2**32 - 1},
        {"seed": 7, "purpose": 1},
    ],
)
def test_another_name_is_another_stream(other: dict[str, int]) -> None:
    """Seed (both halves), stream and purpose each select an unrelated stream."""
    own, foreign = RandomStream(7).words(64), RandomStream(**other).words(64)
    assert not set(own.tolist()) & set(foreign.tolist())


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 0, "stream": 2**32}, "stream"),
        ({"seed": 0, "purpose": -1}, "purpose"),
    ],
)
def test_out_of_range(arguments: dict[str, int], name: str) -> None:
    """A number that does not fit its field is refused by name, not cut."""
    with pytest.raises(ValueError, match=rf"{name} must be in \[0, 2\*\*"):
        RandomStream(**arguments)


def test_signs_are_fair_in_every_bit() -> None:
    """Signs are +1 and -1, half and half within four standard errors, for each position in a word."""
    signs = RandomStream(1).signs(32 * 10_000)
    assert signs.dtype == torch.int8
    assert set(signs.tolist()) == {-1, 1}
    assert signs.double().view(-1, 32).mean(dim=0).abs().max() < 4 / 100


def test_uniform_moments_and_range() -> None:
    """Uniform numbers stay strictly inside (0, 1), with mean 1/2 and variance 1/12."""
    numbers = RandomStream(2).uniform(100_000)
    assert numbers.dtype == torch.float64
    assert numbers.min() > 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 4 * (1 / 12 / 100_000) ** 0.5
    assert abs(numbers.var() - 1 / 12) < 0.001


def test_normal_moments() -> None:
    """Normal numbers have the first four moments of N(0, 1), and neighbours are uncorrelated."""
    numbers = RandomStream(3).normal(100_000)
    assert abs(numbers.mean()) < 0.013
    assert abs(numbers.var() - 1) < 0.02
    assert abs((numbers**3).mean()) < 0.05
    assert abs((numbers**4).mean() - 3) < 0.15
    assert abs((numbers[::2] * numbers[1::2]).mean()) < 0.02


def test_golden_words() -> None:
    """These words stand in files that exist: a change needs a new random.VERSION."""
    stream = RandomStream(0x0123456789ABCDEF, stream=3, purpose=4)
    assert [f"{word:08x}" for word in stream.words(5).tolist()] == [
        "84d54912",
        "969dc010",
        "ce5acfbf",
        "16c89ed4",
        "9e18c193",
    ]


def test_a_later_start_gives_the_later_numbers() -> None:
    """Starting at a position is the same as leaving out what comes before it."""
    stream = RandomStream(5, stream=2, purpose=9)
    for start in (0, 2, 6, 10):
        assert torch.equal(stream.words(7, start=start), stream.words(30)[start : start + 7])
        assert torch.equal(stream.normal(7, start=start), stream.normal(30)[start : start + 7])
    with pytest.raises(ValueError, match="start must be even"):
        stream.normal(2, start=3)
