"""`Predictor`: predict many datasets with the samples of one posterior, which are prepared once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from avuc.core.accelerators import prediction_backends
from avuc.core.errors import InputError, NonFiniteError
from avuc.core.fingerprint import Fingerprint, fingerprint
from avuc.core.progress import Progress
from avuc.posterior import Draw, Posterior, seeded_generator
from avuc.prediction.backends.backend import Backend, BackendClass, BackendOptions
from avuc.prediction.backends.generic import GenericBackend
from avuc.prediction.backends.shared_trunk import SharedTrunkBackend
from avuc.prediction.checks import (
    check_outputs,
    check_posterior,
    check_seed,
    explanation,
    number_of_samples,
    refuse_nan,
    warn_about_images,
    warn_about_net,
    warn_about_spread,
)
from avuc.prediction.inputs import Batch, Batches, Images, device_of
from avuc.prediction.running_sums import SampleSums, monte_carlo_error
from avuc.predictions import HasTransform, Predictions

# with fewer images × samples than this, compiling costs more than it saves
WORTH_COMPILING = 500_000
# how many single samples run between two checks for NaN: each check makes the GPU wait for the host
CHECK_EVERY = 16
# fewer samples give no usable estimate of the Monte Carlo error
FEWEST_SAMPLES = 8
# default limit of `Predictor(memory=)`, in bytes
MEMORY = 1 << 30


@dataclass(frozen=True)
class Reading:
    """One of several predictions from the same samples (`Predictor.read`).

    Attributes:
        samples: how many of the samples to use; None: all.
        calibrator: its `transform` is applied to the logits of each sample; None: no calibration.
    """

    samples: int | None = None
    calibrator: HasTransform | None = None


class Predictor:
    """Predict many datasets with one posterior: `predictor(images, labels)` returns the same as `predict`.

    Threads may share a `Predictor`; their calls run one after the other.

    Each call checks whether the posterior has changed (its weights, buffers, layers, hooks and plain attributes), and
    draws new samples if so. Changes that are visible only in a closure or a global variable of the posterior's code
    cannot be detected: call `forget()` after such a change.

    Args:
        posterior: what a method returns.
        samples: number of samples, or "auto".
        seed: seed of the samples.
        tolerance: for `samples="auto"`.
        max_samples: for `samples="auto"`.
        batch_size: images per batch.
        device: where to predict.
        dtype: type for autocast.
        compiled: whether to compile; None decides.
        fold_batch_norm: whether to fold batch normalisation. All arguments up to here are explained at `predict`.
        memory: bytes of sampled weights that are kept from one call to the next. Samples that do not fit are prepared
            again in each call.

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
        self._requested_samples = (samples, tolerance, max_samples)
        self.limit, self.automatic = number_of_samples(posterior, *self._requested_samples)
        self.posterior, self.seed, self.tolerance = posterior, seed, tolerance
        self.batch_size, self.dtype, self.compiled = batch_size, dtype, compiled
        self.fold_batch_norm, self.memory = fold_batch_norm, memory
        self._requested_device = None if device is None else torch.device(device)
        self._device = torch.device("cpu")
        self._state: tuple[torch.device, Fingerprint] | None = None
        self._outputs_checked = False  # since the posterior last changed
        self._lock = threading.RLock()
        self._first: Draw | None = None  # sample 0, drawn to select a backend
        self._special: Backend | None = None  # a backend for this kind of samples
        self._generic: dict[bool | str, GenericBackend] = {}  # by whether, and how, it compiles

    def __call__(
        self,
        images: Images,
        labels: Images | None = None,
        *,
        calibrator: HasTransform | None = None,
        progress: bool = False,
    ) -> Predictions:
        """Return the posterior's mean prediction for each image; see `predict`."""
        return self.read(images, labels, [Reading(None, calibrator)], progress=progress)[0]

    @torch.no_grad()
    def read(
        self, images: Images, labels: Images | None, readings: Sequence[Reading], *, progress: bool = False
    ) -> list[Predictions]:
        """Return several predictions from the same samples; the network runs only once for all of them."""
        with self._lock:
            return self._read(images, labels, readings, progress)

    def _read(
        self, images: Images, labels: Images | None, readings: Sequence[Reading], progress: bool
    ) -> list[Predictions]:
        batches = self._begin(images, labels)
        limits = [self._limit(reading.samples) for reading in readings]
        limit, automatic = max(limits), self.automatic and all(reading.samples is None for reading in readings)
        sums = [SampleSums(batches.rows, self._device) for _ in readings]
        largest = limits.index(limit)
        used, checked, error = 0, 0, None
        chunk_flags: list[Tensor] = []  # which samples of a chunk held NaN, batch by batch
        unchecked: list[Tensor] = []  # the same (samples, batches) since the last check
        with Progress("samples", None if automatic else limit) if progress else contextlib.nullcontext() as bar:
            for samples, batch, logits in self._chunks(batches, limit, 1 if automatic else limit):
                for number, (total, reading, most) in enumerate(zip(sums, readings, limits, strict=True)):
                    if most > samples.start:
                        flags = total.add(
                            batch.rows, _probabilities(logits[: most - samples.start], reading.calibrator)
                        )
                        if number == largest:
                            chunk_flags.append(flags)
                if batch.rows.stop < batches.rows:
                    continue
                used = samples.stop
                unchecked.append(torch.stack(chunk_flags, 1))
                chunk_flags.clear()
                # chunks of several samples take little time: one check after the last is enough
                if automatic or used == limit or (len(samples) == 1 and (used == 1 or used % CHECK_EVERY == 0)):
                    refuse_nan(unchecked, checked, batches.size, batches.rows)
                    unchecked.clear()
                    checked = used
                if automatic and used >= FEWEST_SAMPLES:
                    error = monte_carlo_error(sums[0].probs, sums[0].squares, used)
                if bar is not None:
                    bar.advance(len(samples), note="" if error is None else f"error {error:.4f}")
                if error is not None and error <= self.tolerance:
                    break
        predictions = [self._predictions(total, batches, min(n, used)) for total, n in zip(sums, limits, strict=True)]
        if self.posterior.num_draws is None:
            warn_about_spread(predictions[largest])
        return predictions

    @torch.no_grad()
    def logits(self, images: Images, samples: int | None = None) -> Tensor:
        """Return the logits (S, N, C) of the first samples, on the CPU: calibrators are fitted on them."""
        with self._lock:
            return self._logits(images, samples)

    def _logits(self, images: Images, samples: int | None) -> Tensor:
        batches = self._begin(images, None)
        limit = self._limit(samples)
        result = torch.empty(0)
        for chunk, batch, logits in self._chunks(batches, limit, limit):
            if not bool(logits.amax().isfinite()):
                where = f"samples {chunk.start}…{chunk.stop - 1}, images {batch.rows.start}…{batch.rows.stop - 1}"
                raise NonFiniteError(
                    f"{where}: the logits hold NaN or +infinity; look for NaN in the images or the weights"
                )
            if result.numel() == 0:
                result = torch.empty(limit, batches.rows, logits.shape[-1], dtype=logits.dtype)
            result[chunk.start : chunk.stop, batch.rows] = logits.cpu()
        return result

    def _chunks(self, batches: Batches, limit: int, most: int) -> Iterator[tuple[range, Batch, Tensor]]:
        """Yield (samples, batch, logits (samples, images, classes)): `limit` samples, at most `most` at a time."""
        try:
            yield from self._run(batches, limit, most)
        except RuntimeError as error:
            line = explanation(error, self.posterior, batches.images)
            if line is None:
                raise
            raise line from error

    def _run(self, batches: Batches, limit: int, most: int) -> Iterator[tuple[range, Batch, Tensor]]:
        backend, used = self._backend(batches, limit), 0
        try:
            while used < limit:
                samples = range(used, min(used + most, used + backend.samples_per_chunk, limit))
                if not backend.ready(samples):
                    backend.end()
                    self._special, backend = None, self._generic_backend(batches, limit)
                    continue
                for batch in batches:
                    logits = backend.logits(samples, batch)
                    if logits.ndim != 3 or logits.shape[1] != len(batch):
                        found = tuple(logits.shape[1:])
                        raise InputError(f"a sample must return logits ({len(batch)}, classes), found {found}")
                    if not self._outputs_checked:
                        check_outputs(logits[0])
                        self._outputs_checked = True
                    # at least float32 for everything that follows
                    yield samples, batch, logits if logits.dtype == torch.float64 else logits.float()
                used = samples.stop
        finally:
            backend.end()

    def forget(self) -> None:
        """Drop the samples that are kept; needed only after a change of the posterior that cannot be detected."""
        with self._lock:
            self._first, self._special, self._generic, self._state = None, None, {}, None
            self._outputs_checked = False

    def _limit(self, samples: int | None) -> int:
        if samples is None:
            return self.limit
        if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
            raise InputError(f"samples must be a positive whole number, found {samples}")
        return samples if self.posterior.num_draws is None else min(samples, self.posterior.num_draws)

    def _predictions(self, sums: SampleSums, batches: Batches, used: int) -> Predictions:
        error = monte_carlo_error(sums.probs, sums.squares, used, self.posterior.num_draws)
        return sums.predictions(batches.labels, used, error)

    def _begin(self, images: Images, labels: Images | None) -> Batches:
        device = device_of(self.posterior, images, self._requested_device)
        batches = Batches(images, labels, self.batch_size, device)
        state = (device, fingerprint(self.posterior))
        if state != self._state:
            self.forget()
            self.limit, self.automatic = number_of_samples(self.posterior, *self._requested_samples)
            warn_about_net(self.posterior)
            self._state, self._device = state, device
            self._special = self._special_backend()
        warn_about_images(images)
        return batches

    def _options(self) -> BackendOptions:
        return BackendOptions(self._device, self.dtype, self.fold_batch_norm, self.compiled, self.memory)

    def _special_backend(self) -> Backend | None:
        """Return the first backend that supports these samples, other than the generic one."""
        first = self._first = self._sample(0)
        classes: list[BackendClass] = [SharedTrunkBackend, *prediction_backends()]
        for kind in classes:
            backend = kind.for_sample(self._sample, first, self._options())
            if backend is not None:
                return backend
        return None

    def _backend(self, batches: Batches, limit: int) -> Backend:
        if self._special is not None and self._special.begin(batches):
            return self._special
        return self._generic_backend(batches, limit)

    def _generic_backend(self, batches: Batches, limit: int) -> GenericBackend:
        compiled = self.compiled
        if compiled is None:
            compiled = self._device.type == "cuda" and limit * batches.rows >= WORTH_COMPILING
        if compiled not in self._generic:
            self._generic.clear()  # the limit of memory is for both together
            self._generic[compiled] = GenericBackend(self._sample, replace(self._options(), compiled=compiled))
        self._generic[compiled].begin(batches)
        return self._generic[compiled]

    def _sample(self, index: int) -> Draw:
        if index == 0 and self._first is not None:
            first, self._first = self._first, None
            return first
        member = getattr(self.posterior, "member", None)
        if self.posterior.num_draws is not None and member is not None:
            chosen: Draw = member(index)
            return chosen
        return self.posterior.draw(seeded_generator(self.seed, index, device=self._device))


def _probabilities(logits: Tensor, calibrator: HasTransform | None) -> Tensor:
    """Return softmax probabilities; the calibrator gets the logits of all samples as rows (samples × images, C)."""
    if calibrator is not None:
        logits = calibrator.transform(logits.flatten(0, 1)).view(logits.shape)
    return logits.softmax(-1)
