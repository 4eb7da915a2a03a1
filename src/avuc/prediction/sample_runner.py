"""`SampleRunner`: runs the samples of a posterior over batches, with the fastest backend that supports them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from avuc.bayes import BayesianModule
from avuc.core.accelerators import prediction_backends
from avuc.core.fingerprint import Fingerprint, fingerprint
from avuc.posterior import Draw, Posterior
from avuc.prediction.arguments import Arguments
from avuc.prediction.backends.backend import Backend, BackendClass, BackendOptions
from avuc.prediction.backends.generic import GenericBackend
from avuc.prediction.backends.shared_trunk import SharedTrunkBackend
from avuc.prediction.checks import batch_statistics, explanation, number_of_samples, warn_about_images, warn_about_net
from avuc.prediction.inputs import Batch, Batches, device_of
from avuc.prediction.model import sample_of
from avuc.prediction.outputs import check_outputs
from avuc.prediction.randomness import generator_states, same_states, warn_if_random
from avuc.prediction.task import Task

# The first compiled sample takes 22 to 34 s (benchmarks/results/any-net.json), so longer work is compiled. The
# time is that of one batch, measured, times the number of batches and samples.
WORTH_COMPILING = 30.0
# the methods of `BayesianModule` that make a sample
DRAWING = ("draw", "noise", "weights", "run", "run_views", "mean_module")
# with fewer passes of a batch through the network, measuring the time is not worthwhile
FEWEST_PASSES = 100


class SampleRunner:
    """Draws samples, selects a backend, and keeps what the backend prepared until the posterior changes.

    Args:
        posterior: the posterior.
        seed: seed of the samples.
        requested_samples: number of samples or "auto", tolerance, most samples.
        requested_device: where to run; None: where the posterior is.
        options: for the backends; their device is decided by `begin`.
        task: how logits are laid out.
    """

    def __init__(
        self,
        posterior: Posterior,
        seed: int,
        requested_samples: tuple[int | str, float, int],
        requested_device: torch.device | None,
        options: BackendOptions,
        task: Task,
    ) -> None:
        self.posterior: Posterior = posterior
        self.seed: int = seed
        self.options: BackendOptions = options
        self.task: Task = task
        self._requested_samples, self._requested_device = requested_samples, requested_device
        self.limit: int
        self.automatic: bool
        self.limit, self.automatic = number_of_samples(posterior, *requested_samples)
        self.state: tuple[torch.device, Fingerprint] | None = None
        self.special: Backend | None = None  # a backend for this kind of samples
        self.generic: dict[bool | str, GenericBackend] = {}  # backends by the value of `compiled`
        self._first: Draw | None = None  # sample 0, drawn to select a backend
        self._outputs_checked = False  # whether outputs were checked since the posterior last changed
        # number of passes of all calls, their seconds, and whether compiling was found to be worth it
        self._passes, self._work, self._compiles = 0, 0.0, False
        self._pass_seconds: dict[int, float] = {}  # seconds of one pass, by the batch size as a power of two
        self.expected: int | None = None  # number of datasets of this form to come, including this one; None: unknown
        # by image shape: whether compiling is worth it, and for how many datasets that was decided
        self._decided: dict[tuple[int, ...], tuple[bool, int]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without prepared samples and shared features: a copy prepares its own."""
        prepared: dict[str, Any] = {
            "_first": None,
            "special": None,
            "generic": {},
            "state": None,
            "_outputs_checked": False,
        }
        return vars(self) | prepared | {"options": replace(self.options, features=None)}

    @property
    def device(self) -> torch.device:
        """Where the samples run."""
        return self.options.device

    def begin(self, data: Arguments) -> None:
        """Get ready for data; everything that was kept is dropped if the posterior or the device has changed."""
        device = device_of(self.posterior, data, self._requested_device)
        state = (device, fingerprint(self.posterior))
        if state != self.state:
            self.forget()
            self.limit, self.automatic = number_of_samples(self.posterior, *self._requested_samples)
            warn_about_net(self.posterior)
            self.state, self.options = state, replace(self.options, device=device)
            self.special = self._special_backend()
        warn_about_images(data)

    def forget(self) -> None:
        """Drop everything that is kept."""
        self._first, self.special, self.generic, self.state = None, None, {}, None
        self._outputs_checked = False

    def chunks(self, batches: Batches, limit: int, most: int) -> Iterator[tuple[range, Batch, Tensor]]:
        """Yield (samples, batch, logits (samples, images, …)): `limit` samples, at most `most` at a time."""
        try:
            yield from self._run(batches, limit, most)
        except (RuntimeError, TypeError) as error:
            line = explanation(error, self.posterior, batches.arguments)
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
                    self.special, backend = None, self._generic_backend(batches, limit)
                    continue
                for batch in batches:
                    if self._outputs_checked:
                        logits = backend.logits(samples, batch)
                    else:
                        logits = self._checked(backend, samples, batch)
                    # at least float32 for everything that follows
                    yield samples, batch, logits if logits.dtype == torch.float64 else logits.float()
                used = samples.stop
        finally:
            backend.end()

    def _checked(self, backend: Backend, samples: range, batch: Batch) -> Tensor:
        """Return the first logits; an error if they are no logits, a warning if they are random."""
        before = generator_states(self.device)
        logits = backend.logits(samples, batch)
        check_outputs(logits[0], self.task, chosen=self.options.logits is not None)
        self._outputs_checked = True
        # another thread may have drawn numbers meanwhile, so the pass is repeated
        if not same_states(before, generator_states(self.device)):
            warn_if_random(logits, backend.logits(samples, batch))
        return logits

    def _special_backend(self) -> Backend | None:
        """Return the first backend that supports these samples, other than the generic one."""
        first = self._first = self._sample(0)
        if self.options.logits is not None:
            return None
        classes: list[BackendClass] = [SharedTrunkBackend, *prediction_backends()]
        for kind in classes:
            backend = kind.for_sample(self._sample, first, self.options)
            if backend is not None:
                return backend
        return None

    def _backend(self, batches: Batches, limit: int) -> Backend:
        if self.special is not None:
            if self.special.begin(batches):
                return self.special
            if batches.expected_rows > batches.rows:
                self.special = None  # the other batches of this loader would be refused too, after a forward pass
        return self._generic_backend(batches, limit)

    def _generic_backend(self, batches: Batches, limit: int) -> GenericBackend:
        compiled = self.options.compiled
        if compiled is None:
            compiled = self._worth_compiling(batches, limit)
        backend = self.generic.get(compiled)
        if backend is None:
            self.generic.clear()  # the memory limit applies to compiled and uncompiled backends together
            options = replace(self.options, compiled=compiled)
            backend = self.generic[compiled] = GenericBackend(self._sample, options, self._bayesian(), self.seed)
            backend.fills = batch_statistics(self.posterior) is None
        backend.limit = limit
        backend.begin(batches)
        return backend

    def _worth_compiling(self, batches: Batches, limit: int) -> bool:
        """Return whether the passes of all calls take long enough; once that is so, all later calls are compiled."""
        if self.device.type != "cuda" or self._compiles:
            return self._compiles
        if self.expected is not None:
            return self._worth_expected(batches, limit, self.expected)
        passes, expected = limit * len(batches), limit * -(-batches.expected_rows // batches.size)
        self._passes += passes
        if max(self._passes, expected) >= FEWEST_PASSES:
            size = batches.numbers.bit_length()
            if size not in self._pass_seconds:
                self._pass_seconds[size] = self._seconds(batches)
            seconds = self._pass_seconds[size]
            # passes before the first measurement are assumed to have taken as long as this one
            self._work += seconds * (passes if self._work else self._passes)
            # the larger of the time of the passes so far, and the time that all batches of this loader will take
            self._compiles = max(self._work, expected * seconds) >= WORTH_COMPILING
        return self._compiles

    def _worth_expected(self, batches: Batches, limit: int, datasets: int) -> bool:
        """Return the same if the number of datasets is known. Each image shape is compiled separately."""
        worth, most = self._decided.get(batches.image_shape, (False, 0))
        if not worth and datasets > most:
            passes = limit * len(batches) * datasets
            worth = passes >= FEWEST_PASSES and passes * self._seconds(batches) >= WORTH_COMPILING
            self._decided[batches.image_shape] = (worth, datasets)
        return worth

    def _seconds(self, batches: Batches) -> float:
        """Return how long one pass of a batch takes without compiling."""
        backend = GenericBackend(self._sample, replace(self.options, compiled=False, memory=0))
        backend.begin(batches)
        backend.ready(range(1))
        batch = next(iter(batches))
        start = 0.0
        for _ in range(2):  # the first pass loads kernels
            torch.cuda.synchronize(self.device)
            start = time.perf_counter()
            backend.logits(range(1), batch)
        torch.cuda.synchronize(self.device)
        backend.end()
        return time.perf_counter() - start

    def _bayesian(self) -> BayesianModule | None:
        """Return the posterior if its samples are those of `BayesianModule`, not of a class that changes them."""
        posterior, kind = self.posterior, type(self.posterior)
        own = isinstance(posterior, BayesianModule) and all(
            getattr(kind, name) is getattr(BayesianModule, name) and name not in vars(posterior) for name in DRAWING
        )
        return posterior if own else None  # type: ignore[return-value]

    def _sample(self, index: int) -> Draw:
        if index == 0 and self._first is not None:
            first, self._first = self._first, None
            return first
        return sample_of(self.posterior, index, self.seed, self.device)
