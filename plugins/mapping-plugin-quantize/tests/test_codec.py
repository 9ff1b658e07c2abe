"""The stream of codes: there and back, as long as the entropy, and the same bytes for ever."""

from __future__ import annotations

import pytest
import torch

from mapping_plugin_quantize._codec import decode, encode


def gaussian(count: int, bits: int, seed: int = 0) -> list[int]:
    """Codes as a latent has them: a Gaussian under LSQ's first step."""
    z = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    highest = 2 ** (bits - 1) - 1
    step = 2 * z.abs().mean() / max(highest, 1) ** 0.5
    codes: list[int] = ((z / step).round().clamp(-highest - 1, highest) + highest + 1).int().tolist()
    return codes


def entropy_bytes(codes: list[int]) -> float:
    """The least bytes that codes take if each is independent of the others."""
    counts = torch.bincount(torch.tensor(codes))
    share = counts[counts > 0] / len(codes)
    return float(-(share * share.log2()).sum()) * len(codes) / 8


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [0, 1, 2, 7, 300])
def test_there_and_back(count: int, bits: int) -> None:
    """Any codes come back, for any number of them and of bits."""
    uniform = torch.randint(2**bits, (count,), generator=torch.Generator().manual_seed(count)).tolist()
    for codes in (uniform, gaussian(max(count, 1), bits)[:count], [0] * count, [2**bits - 1] * count):
        assert decode(encode(codes, [bits] * count), [bits] * count) == codes


def test_many_streams() -> None:
    """Carries run through bytes of any content: two thousand short streams of uneven codes come back."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(2000):
        codes = (torch.rand(20, generator=generator) ** 6 * 4).int().tolist()
        assert decode(encode(codes, [2] * 20), [2] * 20) == codes


def test_mixed_bits() -> None:
    """Codes of different lengths stand in one stream, each length with chances of its own."""
    bits = [1, 3, 8] * 200
    codes = [int(number) % 2**width for number, width in zip(range(600), bits, strict=True)]
    assert decode(encode(codes, bits), bits) == codes


@pytest.mark.parametrize(("count", "bits"), [(5461, 3), (4096, 4), (8192, 2), (8192, 1), (2048, 8)])
def test_length(count: int, bits: int) -> None:
    """A stream is 2 % longer than the entropy at most, and 5 % at 8 bits, where there are many levels to learn."""
    codes = gaussian(count, bits)
    assert len(encode(codes, [bits] * count)) <= entropy_bytes(codes) * (1.05 if bits == 8 else 1.02) + 6


def test_long_runs() -> None:
    """Chances never become certainties: a rare code after many equal ones costs bits and no more."""
    codes = [3] * 20_000 + [0, 3, 1]
    stream = encode(codes, [2] * len(codes))
    assert len(stream) < 20
    assert decode(stream, [2] * len(codes)) == codes


def test_the_bytes_are_fixed() -> None:
    """Files hold these bytes: what was written once must be read for ever."""
    codes = [0, 1, 2, 3, 4, 5, 6, 7, 3, 3, 4, 4, 3, 4, 3, 4]
    assert encode(codes, [3] * 16).hex() == "4ecae81910e57f4fa705b1"
    assert encode([1, 0, 1, 1, 0, 0, 0, 1], [1] * 8).hex() == "89877ced965a"


@pytest.mark.parametrize("change", [lambda s: s[:-1], lambda s: s + b"\x01", lambda s: s[:9] + b"\0" + s[10:]])
def test_damage(change: object) -> None:
    """A stream that was cut or changed is refused."""
    stream = encode(gaussian(100, 4), [4] * 100)
    with pytest.raises(ValueError, match="the checksum of its codes is wrong"):
        decode(change(stream), [4] * 100)  # type: ignore[operator]
