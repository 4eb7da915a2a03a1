"""`SampleRunner`: runs the samples of a posterior over batches, with the fastest backend that supports them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from avuc.core.accelerators import prediction_backends
from avuc.core.fingerprint import Fingerprint, fingerprint
from avuc.posterior import Draw, Posterior, seeded_generator
from avuc.prediction.arguments import Arguments
from avuc.prediction.backends.backend import Backend, BackendClass, BackendOptions
from avuc.prediction.backends.generic import GenericBackend
from avuc.prediction.backends.shared_trunk import SharedTrunkBackend
from avuc.prediction.checks import explanation, number_of_samples, warn_about_images, warn_about_net
from avuc.prediction.inputs import Batch, Batches, device_of
from avuc.prediction.outputs import check_outputs
from avuc.prediction.task import Task

# with fewer images × samples than this, compiling costs more than it saves
WORTH_COMPILING = 500_000


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
        self.generic: dict[bool | str, GenericBackend] = {}  # by whether, and how, it compiles
        self._first: Draw | None = None  # sample 0, drawn to select a backend
        self._outputs_checked = False  # since the posterior last changed

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
                    logits = backend.logits(samples, batch)
                    if not self._outputs_checked:
                        check_outputs(logits[0], self.task, chosen=self.options.logits is not None)
                        self._outputs_checked = True
                    # at least float32 for everything that follows
                    yield samples, batch, logits if logits.dtype == torch.float64 else logits.float()
                used = samples.stop
        finally:
            backend.end()

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
            compiled = self.device.type == "cuda" and limit * batches.expected_rows >= WORTH_COMPILING
        if compiled not in self.generic:
            self.generic.clear()  # the limit of memory is for both together
            self.generic[compiled] = GenericBackend(self._sample, replace(self.options, compiled=compiled))
        self.generic[compiled].begin(batches)
        return self.generic[compiled]

    def _sample(self, index: int) -> Draw:
        if index == 0 and self._first is not None:
            first, self._first = self._first, None
            return first
        member = getattr(self.posterior, "member", None)
        if self.posterior.num_draws is not None and member is not None:
            chosen: Draw = member(index)
            return chosen
        return self.posterior.draw(seeded_generator(self.seed, index, device=self.device))
