"""`Predictor`: one posterior over many sets of images, with everything that does not depend on the images made once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.fingerprint import Fingerprint, fingerprint
from avuc.core.progress import Progress
from avuc.gpu.fused_resnet import WholeNet
from avuc.posterior import Draw, Posterior, seeded_generator
from avuc.prediction.backends.generic import Plain, Way
from avuc.prediction.backends.shared_trunk import LastLayer
from avuc.prediction.checks import (
    check_outputs,
    check_posterior,
    check_seed,
    explanation,
    number_of_draws,
    refuse_nan,
    warn_about_images,
    warn_about_net,
    warn_about_spread,
)
from avuc.prediction.inputs import Batch, Batches, Images, device_of
from avuc.prediction.running_sums import DrawSums, monte_carlo_error
from avuc.predictions import HasTransform, Predictions

__all__ = ["Predictor", "Reading"]

# below this many images × draws, compiling costs more than it saves
WORTH_COMPILING = 500_000
# single draws between two looks at the device: each look makes a GPU wait for the host
LOOK_EVERY = 16
# fewer draws give no usable estimate of their own spread
FEWEST_DRAWS = 8
# bytes of draws that are kept from one set of images to the next
MEMORY = 1 << 30


@dataclass(frozen=True)
class Reading:
    """One way to read the draws' logits: with how many draws (None: all), through which calibrator."""

    samples: int | None = None
    calibrator: HasTransform | None = None


class Predictor:
    """`predict` with a memory: `predictor(images, labels)` gives the same `Predictions`, set after set.

    The arguments are those of `predict`. The draws' weights, folded and packed, are kept up to `memory` bytes; what
    exceeds them is made again for each set. Each call looks whether the posterior has changed (its weights, however
    they were written, its buffers, layers, hooks and plain attributes) and makes the draws again if so. It cannot see
    what only a closure or a global variable of the posterior's code knows: call `forget()` after such a change.
    Threads may share a `Predictor`; their calls run one after the other.

    >>> from avuc.bayes import to_bayesian
    >>> from avuc.nets import mlp
    >>> predictor = Predictor(to_bayesian(mlp(3, (8, 8, 1))), samples=4)
    >>> [predictor(torch.rand(rows, 1, 8, 8)).probs.shape for rows in (5, 6)]
    [torch.Size([5, 3]), torch.Size([6, 3])]
    """

    def __init__(
        self,
        posterior: Posterior,
        *,
        samples: int | Literal["auto"] = 128,
        seed: int = 0,
        tolerance: float = 0.005,
        max_samples: int = 1024,
        batch_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        compiled: bool | str | None = None,
        fold_batch_norm: bool = True,
        memory: int = MEMORY,
    ) -> None:
        check_posterior(posterior)
        check_seed(seed)
        self._asked = (samples, tolerance, max_samples)
        self.limit, self.automatic = number_of_draws(posterior, *self._asked)
        self.posterior, self.seed, self.tolerance = posterior, seed, tolerance
        self.batch_size, self.dtype, self.compiled = batch_size, dtype, compiled
        self.fold_batch_norm, self.memory = fold_batch_norm, memory
        self._wanted = None if device is None else torch.device(device)
        self._place = torch.device("cpu")
        self._state: tuple[torch.device, Fingerprint] | None = None
        self._looked = False  # whether the outputs have been looked at since the posterior last changed
        self._lock = threading.RLock()
        self._first: Draw | None = None  # already made, to see of what kind it is
        self._special: WholeNet | LastLayer | None = None
        self._plain: dict[bool | str, Plain] = {}

    def __call__(
        self,
        images: Images,
        labels: Images | None = None,
        *,
        calibrator: HasTransform | None = None,
        progress: bool = False,
    ) -> Predictions:
        """The posterior's mean prediction for each image; see `predict`."""
        return self.read(images, labels, [Reading(None, calibrator)], progress=progress)[0]

    @torch.no_grad()
    def read(
        self, images: Images, labels: Images | None, readings: Sequence[Reading], *, progress: bool = False
    ) -> list[Predictions]:
        """Several readings of the same draws, at the price of the one with the most."""
        with self._lock:
            return self._read(images, labels, readings, progress)

    def _read(
        self, images: Images, labels: Images | None, readings: Sequence[Reading], progress: bool
    ) -> list[Predictions]:
        batches = self._begin(images, labels)
        limits = [self._limit(reading.samples) for reading in readings]
        limit, automatic = max(limits), self.automatic and all(reading.samples is None for reading in readings)
        sums = [DrawSums(batches.rows, self._place) for _ in readings]
        widest = limits.index(limit)
        used, looked, error = 0, 0, None
        broken: list[Tensor] = []  # which draws of a chunk held NaN, batch by batch
        unseen: list[Tensor] = []  # the same since the last look, (draws, batches)
        with Progress("draws", None if automatic else limit) if progress else contextlib.nullcontext() as bar:
            for draws, batch, logits in self._chunks(batches, limit, 1 if automatic else limit):
                for number, (one, reading, most) in enumerate(zip(sums, readings, limits, strict=True)):
                    if most > draws.start:
                        flags = one.add(batch.rows, _probabilities(logits[: most - draws.start], reading.calibrator))
                        if number == widest:
                            broken.append(flags)
                if batch.rows.stop < batches.rows:
                    continue
                used = draws.stop
                unseen.append(torch.stack(broken, 1))
                broken.clear()
                # a chunk of draws is over soon: one look after the last is enough
                if automatic or used == limit or (len(draws) == 1 and (used == 1 or used % LOOK_EVERY == 0)):
                    refuse_nan(unseen, looked, batches.size, batches.rows)
                    unseen.clear()
                    looked = used
                if automatic and used >= FEWEST_DRAWS:
                    error = monte_carlo_error(sums[0].probs, sums[0].squares, used)
                if bar is not None:
                    bar.advance(len(draws), note="" if error is None else f"error {error:.4f}")
                if error is not None and error <= self.tolerance:
                    break
        told = [self._told(one, batches, min(most, used)) for one, most in zip(sums, limits, strict=True)]
        if self.posterior.num_draws is None:
            warn_about_spread(told[widest])
        return told

    @torch.no_grad()
    def logits(self, images: Images, samples: int | None = None) -> Tensor:
        """(S, N, C) logits of the first draws, on the host: what calibrators are fitted on."""
        with self._lock:
            return self._logits(images, samples)

    def _logits(self, images: Images, samples: int | None) -> Tensor:
        batches = self._begin(images, None)
        limit = self._limit(samples)
        kept = torch.empty(0)
        for draws, batch, logits in self._chunks(batches, limit, limit):
            if not bool(logits.amax().isfinite()):
                where = f"draws {draws.start}…{draws.stop - 1}, images {batch.rows.start}…{batch.rows.stop - 1}"
                raise InputError(
                    f"{where}: the logits hold NaN or +infinity; look for NaN in the images or the weights"
                )
            if kept.numel() == 0:
                kept = torch.empty(limit, batches.rows, logits.shape[-1], dtype=logits.dtype)
            kept[draws.start : draws.stop, batch.rows] = logits.cpu()
        return kept

    def _chunks(self, batches: Batches, limit: int, most: int) -> Iterator[tuple[range, Batch, Tensor]]:
        """Draws, at most `most` at a time, over all images: their logits (draws, images, classes) batch by batch."""
        try:
            yield from self._run(batches, limit, most)
        except RuntimeError as error:
            line = explanation(error, self.posterior, batches.images)
            if line is None:
                raise
            raise line from error

    def _run(self, batches: Batches, limit: int, most: int) -> Iterator[tuple[range, Batch, Tensor]]:
        way, used = self._way(batches, limit), 0
        try:
            while used < limit:
                draws = range(used, min(used + most, used + way.at_once, limit))
                if not way.ready(draws):
                    way.end()
                    self._special, way = None, self._plain_way(batches, limit)
                    continue
                for batch in batches:
                    logits = way.logits(draws, batch)
                    if logits.ndim != 3 or logits.shape[1] != len(batch):
                        found = tuple(logits.shape[1:])
                        raise InputError(f"a draw must give logits ({len(batch)}, classes), found {found}")
                    if not self._looked:
                        check_outputs(logits[0])
                        self._looked = True
                    # float32 at least for all that follows
                    yield draws, batch, logits if logits.dtype == torch.float64 else logits.float()
                used = draws.stop
        finally:
            way.end()

    def forget(self) -> None:
        """Drop the draws that are kept, after a change of the posterior that cannot be noticed."""
        with self._lock:
            self._first, self._special, self._plain, self._state = None, None, {}, None
            self._looked = False

    def _limit(self, samples: int | None) -> int:
        if samples is None:
            return self.limit
        if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
            raise InputError(f"samples must be a positive whole number, found {samples}")
        return samples if self.posterior.num_draws is None else min(samples, self.posterior.num_draws)

    def _told(self, sums: DrawSums, batches: Batches, used: int) -> Predictions:
        error = monte_carlo_error(sums.probs, sums.squares, used, self.posterior.num_draws)
        return sums.predictions(batches.labels, used, error)

    def _begin(self, images: Images, labels: Images | None) -> Batches:
        place = device_of(self.posterior, images, self._wanted)
        batches = Batches(images, labels, self.batch_size, place)
        state = (place, fingerprint(self.posterior))
        if state != self._state:
            self.forget()
            self.limit, self.automatic = number_of_draws(self.posterior, *self._asked)
            warn_about_net(self.posterior)
            self._state, self._place = state, place
            self._special = self._chosen()
        warn_about_images(images)
        return batches

    def _chosen(self) -> WholeNet | LastLayer | None:
        """The way that serves these draws best, if it is not the plain one."""
        first = self._first = self._draw(0)
        found = LastLayer.of(self._draw, first, dtype=self.dtype, folded=self.fold_batch_norm, memory=self.memory)
        kernel = self.dtype == torch.bfloat16 and self.compiled is None and self.fold_batch_norm
        return found if found is not None or not kernel else WholeNet.of(self._draw, first, self._place, self.memory)

    def _way(self, batches: Batches, limit: int) -> Way:
        if self._special is not None and self._special.begin(batches):
            return self._special
        return self._plain_way(batches, limit)

    def _plain_way(self, batches: Batches, limit: int) -> Plain:
        compiled = self.compiled
        if compiled is None:
            compiled = self._place.type == "cuda" and limit * batches.rows >= WORTH_COMPILING
        if compiled not in self._plain:
            self._plain.clear()  # what is kept is bounded once, not for each
            self._plain[compiled] = Plain(
                self._draw,
                device=self._place,
                dtype=self.dtype,
                folded=self.fold_batch_norm,
                compiled=compiled,
                memory=self.memory,
            )
        self._plain[compiled].begin(batches)
        return self._plain[compiled]

    def _draw(self, index: int) -> Draw:
        if index == 0 and self._first is not None:
            first, self._first = self._first, None
            return first
        member = getattr(self.posterior, "member", None)
        if self.posterior.num_draws is not None and member is not None:
            chosen: Draw = member(index)
            return chosen
        return self.posterior.draw(seeded_generator(self.seed, index, device=self._place))


def _probabilities(logits: Tensor, calibrator: HasTransform | None) -> Tensor:
    """The calibrator sees rows of logits, whatever draw they are of."""
    if calibrator is not None:
        logits = calibrator.transform(logits.flatten(0, 1)).view(logits.shape)
    return logits.softmax(-1)
