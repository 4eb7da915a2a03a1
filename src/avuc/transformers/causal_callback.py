"""`LinearAvUCCallback`: a causal language model whose loss is `linear_avuc`, and the callback that goes with it."""

from __future__ import annotations

import inspect
import types
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from avuc.core.data_parallel import Group, sum_over_ranks, world_size
from avuc.core.errors import InputError
from avuc.losses import AvUCLoss
from avuc.losses.linear.function import LinearAvUC, linear_avuc
from avuc.transformers.causal_head import Logits, auxiliary_loss, causal_model, find_logits, output_layer
from avuc.transformers.rows import rows_without_repeats
from avuc.transformers.stored import restore, stored, unused_reason
from avuc.transformers.token_metrics import TokenMetrics

# name of our entry in `trainer_state.json`, and of our attribute of the model
KEY, ATTRIBUTE = "avuc.linear_avuc", "_linear_avuc"
# arguments of the model's loss that are not arguments of its forward pass
LOSS_ARGUMENTS = ("num_items_in_batch", "shift_labels", "skip_logits", "ignore_index")


class LinearAvUCCallback(TrainerCallback):
    """What `use_linear_avuc` returns: give it to `Trainer(callbacks=[...])`.

    It logs figures of the tokens with every training loss and every evaluation: `token_accuracy`, `token_nll`,
    `token_ece`, `token_uce`, `token_avu` at the threshold, and the mean entropies `token_entropy_right` and
    `token_entropy_wrong`. They come from sums of fixed size. It keeps the threshold and the progress of the warm-up in
    the checkpoints (`trainer_state.json`), so that training resumes with them.

    Args:
        model: the causal language model.
        avuc: learns and holds the threshold.
        options: further arguments of `linear_avuc`.
        eval_logits: whether a model in eval() mode also returns logits.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from avuc.transformers import use_linear_avuc
    >>> sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 20, "bos_token_id": 0, "eos_token_id": 0}
    >>> callback = use_linear_avuc(GPT2LMHeadModel(GPT2Config(**sizes)), threshold=1.5)
    >>> callback.threshold
    1.5
    >>> callback.undo()
    """

    def __init__(self, model: Any, avuc: AvUCLoss, options: dict[str, Any], *, eval_logits: bool = False) -> None:
        self.model: Any = causal_model(model)
        self.avuc: AvUCLoss = avuc
        self.options: dict[str, Any] = options
        if options["kind"] != "avuc" or not options["beta"]:
            avuc.reported()  # its warm-up only gives a threshold for the figures
        self.eval_logits: bool = eval_logits
        if ATTRIBUTE in vars(self.model):
            raise InputError("use_linear_avuc: this model already trains with linear_avuc; call undo() first")
        self.logits: Logits = find_logits(self.model)
        self.group: Group = options["group"]
        self.active: bool = True
        self._in_trainer = False
        self._averaging = False
        self._capturing, self._skipping = False, True
        self._hidden: list[Tensor] = []
        self._used = False  # whether a forward pass of training came here
        self._tokens, self._evaluated, self._pending = (TokenMetrics(self.group) for _ in range(3))
        self._head: nn.Module | None = None
        self._handle: Any = None
        self._watch(output_layer(self.model))
        signature = inspect.signature(self.model.forward)
        self._labels_at = list(signature.parameters).index("labels")
        self._own_forward = vars(self.model).get("forward")  # hooks of accelerate replace it, too
        self.forward: Any = self.model.forward
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = signature.replace(parameters=[own, *signature.parameters.values()])
        # a method of the model: accelerate takes its function and binds it to the model again
        self._patched = types.MethodType(_function(signature), self.model)
        self.model.forward = self._patched
        setattr(self.model, ATTRIBUTE, self)

    @property
    def threshold(self) -> float:
        """The entropy in nats up to which a token is certain; NaN during the warm-up."""
        return float(self.avuc.threshold)

    def undo(self) -> None:
        """Give the model its own forward pass and loss back."""
        self.active = False
        self._handle.remove()
        if vars(self.model).get("forward") is self._patched:
            del self.model.forward
            if self._own_forward is not None:
                self.model.forward = self._own_forward
            delattr(self.model, ATTRIBUTE)

    # ---- the forward pass

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the model's own `forward` returns, with this loss; without labels, exactly that."""
        at = self._labels_at
        labels = args[at] if len(args) > at else kwargs.get("labels")
        training = self.model.training and torch.is_grad_enabled()
        if not self.active or labels is None:
            if self.active and self._in_trainer and training:
                raise InputError(
                    "use_linear_avuc: the model was called without labels in training; leave compute_loss_func, label "
                    "smoothing and AvUCTrainer out"
                )
            kwargs.pop("skip_logits", None)
            return self.forward(*args, **kwargs)
        kwargs = dict(kwargs)
        items, shifted, skip, ignore = (kwargs.pop(name, None) for name in LOSS_ARGUMENTS)
        as_dict = kwargs.pop("return_dict", None)
        if len(args) > at:
            args = (*args[:at], None, *args[at + 1 :])
        else:
            kwargs["labels"] = None
        skip = (training or not self.eval_logits) if skip is None else skip
        outputs, hidden = self._without_loss(args, kwargs, bool(skip))
        loss = self._loss(hidden, labels, shifted, items, -100 if ignore is None else ignore, training)
        loss = loss + auxiliary_loss(self.model, outputs)
        kept = {name: value for name, value in outputs.items() if not (skip and name == "logits")}
        result = type(outputs)(**{**kept, "loss": loss})
        return result if as_dict or (as_dict is None and self.model.config.return_dict) else result.to_tuple()

    def _without_loss(self, args: tuple[Any, ...], kwargs: dict[str, Any], skip: bool) -> tuple[Any, Tensor]:
        """Return the outputs without loss, and the hidden states that the output layer received."""
        if not torch.compiler.is_compiling():
            self._watch(output_layer(self.model))
        self._capturing, self._skipping, self._hidden = True, skip, []
        try:
            outputs = self.forward(*args, return_dict=True, **kwargs)
        finally:
            self._capturing = False
        if not self._hidden:
            raise InputError(f"use_linear_avuc: {type(self.model).__name__} did not use its output layer")
        return outputs, self._hidden.pop()

    def _watch(self, head: nn.Module) -> None:
        """Note the output layer: `resize_token_embeddings` and adapters replace it."""
        if head is not self._head:
            if self._handle is not None:
                self._handle.remove()
            self._head, self._handle = head, head.register_forward_pre_hook(self._capture)

    def _capture(self, head: nn.Module, inputs: tuple[Any, ...]) -> Any:
        """Keep the hidden states, and give the output layer none of them."""
        if not self._capturing:
            return None
        self._hidden.append(inputs[0])
        return (inputs[0][..., :0, :],) if self._skipping else None

    def _loss(
        self, hidden: Tensor, labels: Tensor, shifted: Tensor | None, items: Any, ignore: int, training: bool
    ) -> Tensor:
        head, options = self._head, dict(self.options)
        assert isinstance(head, nn.Linear)
        device = head.weight.device
        if self.avuc.threshold.device != device:
            self.avuc.to(device)
        self.avuc.train(training)
        if not training:  # without sums over ranks: evaluation batches of different ranks need not match
            options |= {"kind": "plain", "nll_weight": 1.0, "group": False}
        elif options["kind"] == "avuc" and self.avuc.warming_up:
            options["kind"] = "plain"
        options |= {
            "threshold": None if options["kind"] == "plain" else self.avuc.threshold,
            "bias": head.bias,
            "ignore_index": ignore,
            "shift": shifted is None,
            "softcap": self.logits.softcap,
            "logit_scale": self.logits.scale,
        }
        hidden, words = hidden.to(device), (labels if shifted is None else shifted).to(device)
        result = counted = linear_avuc(hidden, head.weight, words, **options)
        own = len(words) if training else rows_without_repeats(len(words))
        if own < len(words):
            words = torch.cat((words[:own], torch.full_like(words[own:], ignore)))
            counted = linear_avuc(hidden, head.weight, words, **options)
        self._count(counted, len(head.weight), training)
        return result.loss if items is None else result.loss * self._share(result, items, options["group"])

    def _count(self, result: LinearAvUC, words: int, training: bool) -> None:
        """Add the tokens to the figures, and in training to the threshold."""
        if not training:
            self._pending.sums = None  # only batches that `Trainer` evaluates are kept, see `on_prediction_step`
        (self._tokens if training else self._pending).update(result, words, self.avuc.threshold)
        if training:
            self._used = True
            parts = (result.entropy, result.correct, result.valid)
            self.avuc.observe(*(part.reshape(-1) for part in parts))

    def _share(self, result: LinearAvUC, items: Any, group: Group) -> Tensor:
        """Return the factor that makes the mean over this micro-batch a part of that over the whole batch."""
        ranks = world_size(group)
        if not self._in_trainer and result.loss.requires_grad:
            _ask_for_the_callback(ranks)
        count = torch.as_tensor(items, device=result.loss.device).reshape(-1)[0].to(result.loss.dtype)
        if ranks > 1 and not self._averaging:
            count, ranks = sum_over_ranks(count, group), 1
        # Trainer multiplies by the number of ranks if `items` is the number on all of them
        return result.num_valid / (count.clamp(min=1) * ranks)

    # ---- as a callback

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Refuse settings that would leave this loss out; restore the threshold if the run resumes."""
        if args.label_smoothing_factor:
            raise InputError("use_linear_avuc: there is no label smoothing; set label_smoothing_factor=0")
        if args.n_gpu > 1:
            raise InputError("use_linear_avuc: one process cannot use several GPUs; start one per GPU with torchrun")
        if model is not None and causal_model(model) is not self.model:
            raise InputError("use_linear_avuc: Trainer trains another model than this callback belongs to")
        if not self.active:
            raise InputError("use_linear_avuc: undo() was called; leave the callback out")
        self._in_trainer, self._used = True, False
        self._averaging = getattr(args, "average_tokens_across_devices", False)
        saved = state.stateful_callbacks.get(KEY)
        if saved is not None:
            restore(self.avuc, saved, KEY)
        elif state.global_step > 0:
            warnings.warn(
                "use_linear_avuc: the checkpoint has no AvUC state, so the warm-up starts again; give Trainer "
                "callbacks=[callback] in the run that writes checkpoints",
                stacklevel=2,
            )
        reason = unused_reason(self.avuc, args, state)
        if reason and self.options["kind"] == "avuc" and self.options["beta"]:
            warnings.warn(f"use_linear_avuc: {reason}", stacklevel=2)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the state into that of `Trainer`, which may write a checkpoint next."""
        if not self._used:
            raise InputError(
                "use_linear_avuc: another forward pass replaced this one, so its loss was not used; leave "
                "use_liger_kernel out, or switch its fused cross-entropy off"
            )
        state.stateful_callbacks[KEY] = stored(self.avuc)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that the training is over."""
        self._in_trainer = False

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the batch that was just evaluated."""
        self._evaluated.merge(self._pending)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add the figures of the tokens to what is logged, and to what `evaluate` returns."""
        if logs is None:
            return
        if "loss" in logs:
            figures = self._tokens.pop(args.device)
            if not self.avuc.warming_up:
                figures["avuc_threshold"] = self.threshold
        else:
            figures = self._figures(logs, args)
        logs.update(figures)
        if state.log_history:
            state.log_history[-1].update(figures)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Add the figures of the tokens to those of `predict`."""
        if metrics is not None:
            metrics.update(self._figures(metrics, args))

    def _figures(self, logs: dict[str, Any], args: Any) -> dict[str, float]:
        prefixes = [name.removesuffix("_loss") for name in logs if name.endswith("_loss") and name != "train_loss"]
        if not prefixes:
            return {}
        return {f"{prefixes[0]}_{name}": value for name, value in self._evaluated.pop(args.device).items()}


def _function(signature: inspect.Signature) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return vars(self)[ATTRIBUTE].run(args, kwargs)

    # Trainer reads from it which columns of the data to keep
    forward.__signature__ = signature  # type: ignore[attr-defined]
    return forward


def _ask_for_the_callback(ranks: int) -> None:
    message = "use_linear_avuc: give Trainer the callback, callbacks=[callback], for checkpoints, logs and ranks"
    if ranks > 1:
        raise InputError(message)
    warnings.warn(message, stacklevel=2)
