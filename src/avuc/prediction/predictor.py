"""`Predictor`: predict many datasets with the samples of one posterior, which are prepared once."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError, NonFiniteError
from avuc.core.progress import Progress
from avuc.core.renamed import renamed
from avuc.core.tasks import IGNORE_INDEX
from avuc.posterior import Posterior
from avuc.prediction.backends.backend import BackendOptions
from avuc.prediction.backends.features import FeatureStore
from avuc.prediction.checks import check_seed, is_whole, refuse_bytes, warn_about_spread
from avuc.prediction.data import DATASET_BATCH, Examples, Inputs, Loaded, parts_of, source_of
from avuc.prediction.inputs import Batches
from avuc.prediction.model import posterior_of, takes_bytes
from avuc.prediction.outputs import Logits
from avuc.prediction.parts import Part, joined
from avuc.prediction.reading import Plan, averages
from avuc.prediction.reading import Reading as Reading
from avuc.prediction.rows import RowLayout
from avuc.prediction.sample_runner import SampleRunner
from avuc.prediction.task import Task
from avuc.predictions import HasTransform, Predictions

# default limit of `Predictor(memory=)`, in bytes
MEMORY = 1 << 30


class Predictor:
    """Predict many datasets with one model: `predictor(data, labels)` returns the same as `predict`.

    Threads may share a `Predictor`; their calls run one after the other.

    Each call checks whether the posterior has changed (its weights, buffers, layers, hooks and plain attributes), and
    draws new samples if so. Changes that are visible only in a closure or a global variable of the posterior's code
    cannot be detected: call `forget()` after such a change.

    Args:
        model: a network, a list of networks, or a posterior.
        samples: number of samples, or "auto".
        inputs: function from a batch to (what the network takes, labels).
        logits: function from the network's output to its logits.
        task: "multiclass", "binary" or "multilabel"; None decides between the first two.
        class_dim: dimension of the classes in the network's output.
        ignore_index: label of positions that are left out.
        seed: seed of the samples.
        tolerance: for `samples="auto"`.
        max_samples: for `samples="auto"`.
        batch_size: images per batch.
        device: where to predict.
        dtype: type for autocast.
        compiled: whether to compile; None decides.
        fold_batch_norm: whether to fold batch normalisation. All arguments up to here are explained at `predict`.
        memory: bytes of sampled weights that are kept from one call to the next. Samples that do not fit are prepared
            again in each call, and for each batch of a DataLoader.

    >>> from avuc.bayes import to_bayesian
    >>> from avuc.nets import mlp
    >>> predictor = Predictor(to_bayesian(mlp(3, (8, 8, 1))), samples=4)
    >>> [predictor(torch.rand(rows, 1, 8, 8)).probs.shape for rows in (5, 6)]
    [torch.Size([5, 3]), torch.Size([6, 3])]
    """

    @renamed(posterior="model")
    def __init__(
        self,
        model: Posterior | nn.Module | Sequence[nn.Module],
        *,
        samples: int | Literal["auto"] = 128,
        inputs: Inputs | None = None,
        logits: Logits | None = None,
        task: str | None = None,
        class_dim: int | None = None,
        ignore_index: int | None = IGNORE_INDEX,
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
        self.posterior: Posterior = posterior_of(model)
        check_seed(seed)
        if logits is not None and not callable(logits):
            raise InputError(f"logits must be a function from the network's output, found {type(logits).__name__}")
        self.seed: int = int(seed)
        self.tolerance: float = tolerance
        self.batch_size: int | None = batch_size
        self.task: Task = Task(task, class_dim, ignore_index)
        self._model, self._inputs = model, inputs
        self._lock = threading.RLock()
        where = None if device is None else torch.device(device)
        options = BackendOptions(torch.device("cpu"), dtype, fold_batch_norm, compiled, memory, logits)
        self._runner = SampleRunner(
            self.posterior, self.seed, (samples, tolerance, max_samples), where, options, self.task
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, also in another process: it gets its own lock and prepares its samples again."""
        with self._lock:
            return {name: value for name, value in vars(self).items() if name != "_lock"} | {
                "_runner": copy.copy(self._runner)
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    @renamed(images="data")
    def __call__(
        self, data: Any, labels: Any = None, *, calibrator: HasTransform | None = None, progress: bool = False
    ) -> Predictions:
        """Return the posterior's mean prediction for each image; see `predict`."""
        return self.read(data, labels, [Reading(None, calibrator)], progress=progress)[0]

    @renamed(images="data")
    def read(self, data: Any, labels: Any, readings: Sequence[Reading], *, progress: bool = False) -> list[Predictions]:
        """Return several predictions from the same samples; the network runs only once for all of them."""
        source = source_of(data, labels, self._inputs, self.batch_size)
        if isinstance(source, Loaded):
            batches = list(self._stream(source, readings, source.count, progress))
            parts = [joined(group) for group in zip(*batches, strict=True)]
        else:
            parts = self._whole(source, readings, progress)
        most = max(parts, key=lambda part: part.samples)
        if not len(most.probs):
            raise InputError(f"every label is ignore_index ({self.task.ignore_index}): there is nothing to predict")
        if self.posterior.num_draws is None:
            warn_about_spread(most.samples, most.error)
        return [part.predictions() for part in parts]

    def stream(
        self, data: Any, labels: Any = None, *, calibrator: HasTransform | None = None, progress: bool = False
    ) -> Iterator[Predictions]:
        """Yield the predictions of one batch after the other, for data whose predictions do not fit into memory.

        Each batch is loaded once. `StreamingMetrics.update(part.probs, part.labels)` takes what this yields.

        >>> predictor = Predictor(nn.Linear(4, 3), batch_size=2)
        >>> [len(part) for part in predictor.stream(torch.rand(5, 4))]
        [2, 2, 1]
        """
        source: Any = source_of(data, labels, self._inputs, self.batch_size)
        count = source.count if isinstance(source, Loaded) else None
        if isinstance(source, Examples):
            size = self.batch_size or DATASET_BATCH
            count, source = -(-source.rows // size), parts_of(source, size)
        for (part,) in self._stream(source, [Reading(None, calibrator)], count, progress):
            yield part.predictions()

    @renamed(images="data")
    def logits(self, data: Any, samples: int | None = None) -> Tensor:
        """Return the logits (S, N, C) of the first samples, on the CPU: calibrators are fitted on them."""
        return self.labelled_logits(data, None, samples)[0]

    @torch.no_grad()
    def labelled_logits(self, data: Any, labels: Any = None, samples: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the logits (S, M, C) of the first samples with their labels (M,), −1 for none, on the CPU.

        A calibrator is fitted on these; the labels may come from a DataLoader. Of a multi-label model the shapes are
        (S, N, L) and (N, L).
        """
        source: Any = source_of(data, labels, self._inputs, self.batch_size)
        results, begun = [], False
        for examples in [source] if isinstance(source, Examples) else source:
            with self._lock:
                if not begun:
                    self._runner.begin(examples.arguments)
                    begun = True
                results.append(self._logits(examples, self._limit(samples)))
        return torch.cat([logits for logits, _ in results], 1), torch.cat([labels for _, labels in results])

    def _logits(self, examples: Examples, limit: int) -> tuple[Tensor, Tensor]:
        batches = self._batches(examples)
        layout, result = RowLayout(batches.labels, self.task), torch.empty(0)
        for chunk, batch, logits in self._runner.chunks(batches, limit, limit):
            rows = layout.rows(logits, batch)
            if rows.numel() and not bool(rows.amax().isfinite()):
                where = f"samples {chunk.start}…{chunk.stop - 1}, images {batch.rows.start}…{batch.rows.stop - 1}"
                raise NonFiniteError(
                    f"{where}: the logits hold NaN or +infinity; look for NaN in the images or the weights"
                )
            if result.numel() == 0:
                result = torch.empty(limit, layout.total(batches.rows), rows.shape[-1], dtype=rows.dtype)
            result[chunk.start : chunk.stop, layout.row_range(batch)] = rows.cpu()
        labels = layout.labels
        if labels is None:
            labels = torch.full(result.shape[1:] if layout.multilabel else result.shape[1:2], -1)
        return result, labels.cpu()

    def _whole(self, examples: Examples, readings: Sequence[Reading], progress: bool) -> list[Part]:
        """Return the averages for a dataset in memory: each sample runs over all of it before the next one."""
        with self._lock:
            self._runner.begin(examples.arguments)
            plan = self._plan(readings)
            total = None if plan.tolerance is not None else max(plan.limits)
            with Progress("samples", total) if progress else contextlib.nullcontext() as bar:
                return self._averages(self._batches(examples), plan, bar)[0]

    def _stream(
        self, source: Iterable[Examples], readings: Sequence[Reading], count: int | None, progress: bool
    ) -> Iterator[list[Part]]:
        """Yield the averages of each batch: all samples run over it before the next one is loaded.

        With `samples="auto"` the first batch decides how many samples there are.
        """
        begun: object = None
        plan, size, number, start = None, 0, 0, 0
        with Progress("batches", count) if progress else contextlib.nullcontext() as bar:
            for examples in source:
                with self._lock:  # released while the next batch is loaded and while the caller works on this one
                    if plan is None or self._runner.state is not begun:
                        self._runner.begin(examples.arguments)
                        begun = self._runner.state
                    plan = plan or self._plan(readings)
                    # a loaded batch is cut only if batch_size is set; batches of one size share a compiled function
                    size = self.batch_size or max(size, examples.rows)
                    batches = self._batches(examples, size, count)
                    parts, used = self._averages(batches, plan._replace(start=(number, start)), None)
                    if plan.tolerance is not None:
                        plan = plan._replace(limits=[used] * len(readings), tolerance=None)
                number, start = number + len(batches), start + examples.rows
                if bar is not None:
                    bar.advance()
                yield parts

    def _plan(self, readings: Sequence[Reading]) -> Plan:
        automatic = self._runner.automatic and all(reading.samples is None for reading in readings)
        limits = [self._limit(reading.samples) for reading in readings]
        return Plan(readings, limits, self.tolerance if automatic else None, self.posterior.num_draws)

    @torch.no_grad()
    def _averages(self, batches: Batches, plan: Plan, bar: Progress | None) -> tuple[list[Part], int]:
        limit = max(plan.limits)
        chunks = self._runner.chunks(batches, limit, limit if plan.tolerance is None else 1)
        return averages(chunks, batches, self.task, plan, bar)

    def share_features(self, store: FeatureStore, *, plain: bool = False) -> None:
        """Take features before the last layer from `store`, and put them there, for models that share the trunk.

        Args:
            store: the features.
            plain: whether a plain network does so, too. It then runs without torch.compile and fast kernels.
        """
        with self._lock:
            self._runner.forget()
            self._runner.options = replace(self._runner.options, features=store, share_plain=plain)

    def expect(self, datasets: int | None) -> None:
        """Say how many datasets like the next one will come, for the decision whether compiling is worth its time.

        Without it, or with None, that follows from the calls so far.
        """
        with self._lock:
            self._runner.expected = datasets

    def forget(self) -> None:
        """Drop the samples that are kept; needed only after a change of the posterior that cannot be detected."""
        with self._lock:
            self._runner.forget()

    def _limit(self, samples: int | None) -> int:
        if samples is None:
            return self._runner.limit
        if not is_whole(samples, 1):
            raise InputError(f"samples must be a positive whole number, found {samples}")
        return int(samples) if self.posterior.num_draws is None else min(int(samples), self.posterior.num_draws)

    def _batches(self, examples: Examples, size: int | None = None, count: int | None = None) -> Batches:
        if examples.arguments.scaled and not takes_bytes(self._model):
            raise refuse_bytes(self._model)
        size = size or self.batch_size
        return Batches(examples.arguments, examples.labels, size, self._runner.device, examples.rows, count or 1)
