"""What guarded jumps may spend: compute, reserved before it is used, accepted risk, and patience."""

from __future__ import annotations

from typing import Any

from attrs import define

#: Forward passes that one training step is worth at least; what was measured lies between 2.6 and 5.1.
STEP_IN_FORWARDS = 2.5


@define
class ComputeLedger:
    """Forward passes of batches that probes may make: `share` of what the steps so far were worth.

    Counted and not timed, so that a run and its repetition decide alike.

    >>> ledger = ComputeLedger(share=0.05)
    >>> ledger.earn(100)
    >>> ledger.reserve(13), ledger.reserve(10), ledger.spent
    (False, True, 10)
    """

    share: float
    steps: int = 0
    spent: int = 0

    def earn(self, batches: int) -> None:
        """Note the batches of a training step."""
        self.steps += batches

    def reserve(self, forwards: int) -> bool:
        """Take so many passes, if they are there."""
        if self.spent + forwards > self.share * STEP_IN_FORWARDS * self.steps:
            return False
        self.spent += forwards
        return True

    def refund(self, forwards: int) -> None:
        """Give back what was reserved and not used."""
        self.spent -= forwards


@define
class LossLedger:
    """The sum of the bounds above 0 that accepted jumps had: the loss they may have cost, as far as bounds hold.

    >>> ledger = LossLedger(most=0.1)
    >>> ledger.accept(-0.5), ledger.accept(0.08), ledger.accept(0.08), ledger.spent
    (True, True, False, 0.08)
    """

    most: float
    spent: float = 0.0

    def accept(self, bound: float) -> bool:
        """Take the risk of a jump, if there is so much left."""
        if self.spent + max(0.0, bound) > self.most:
            return False
        self.spent += max(0.0, bound)
        return True


@define
class Backoff:
    """Waits after rejections, twice as long after each one in a row.

    >>> backoff = Backoff(wait=40)
    >>> backoff.reject(100)
    >>> backoff.waits(139), backoff.waits(140)
    (True, False)
    >>> backoff.reject(140)
    >>> backoff.until
    220
    """

    wait: int
    rejections: int = 0
    until: int = 0

    def waits(self, step: int) -> bool:
        """Whether it is too early to try at `step`."""
        return step < self.until

    def reject(self, step: int) -> None:
        """Note a rejection."""
        self.until = step + self.wait * 2 ** min(self.rejections, 20)
        self.rejections += 1

    def accept(self) -> None:
        """Note an acceptance: the next rejection is the first one again."""
        self.rejections, self.until = 0, 0


def ledger_state(*ledgers: ComputeLedger | LossLedger | Backoff) -> list[dict[str, Any]]:
    """What ledgers hold, as plain values."""
    return [{name: getattr(each, name) for name in _FIELDS[type(each)]} for each in ledgers]


def load_ledgers(state: list[dict[str, Any]], *ledgers: ComputeLedger | LossLedger | Backoff) -> None:
    """Take back what `ledger_state` gave; the settings stay this run's."""
    for values, ledger in zip(state, ledgers, strict=True):
        for name, value in values.items():
            setattr(ledger, name, value)


_FIELDS: dict[type[Any], tuple[str, ...]] = {
    ComputeLedger: ("steps", "spent"),
    LossLedger: ("spent",),
    Backoff: ("rejections", "until"),
}
