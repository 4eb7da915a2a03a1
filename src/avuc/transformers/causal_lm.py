"""`use_linear_avuc`: train a causal language model with AvUC without ever holding its logits."""

from __future__ import annotations

from typing import Any

from avuc.core.data_parallel import Group
from avuc.losses import AvUCLoss
from avuc.losses.inputs import checked_number, checked_whole, one_of
from avuc.losses.linear.function import BACKENDS, KINDS, Backend
from avuc.losses.linear.objective import Kind
from avuc.losses.quadrants import VARIANTS, Variant
from avuc.losses.ua_clm import UA_CLM_VARIANTS
from avuc.transformers.causal_callback import LinearAvUCCallback


def use_linear_avuc(
    model: Any,
    *,
    kind: Kind = "avuc",
    beta: float = 1.0,
    variant: Variant = "monotone",
    threshold: float | None = None,
    warmup_steps: int = 100,
    nll_weight: float = 1.0,
    eval_logits: bool = False,
    chunk_size: int | None = None,
    backend: Backend = "auto",
    group: Group = None,
) -> LinearAvUCCallback:
    """Let a causal language model train with `avuc.linear_avuc`: `model(**batch).loss` is that loss from now on.

        callback = use_linear_avuc(model, beta=1.0)
        Trainer(model, args, train_dataset=..., callbacks=[callback]).train()

    Logits (tokens × vocabulary) are never made for a batch with labels; the hidden states in front of the output layer
    go to `linear_avuc`. Without labels nothing changes: `generate` works as before. In eval() mode the loss is the
    cross-entropy alone, so that it can be compared before and after the warm-up. `callback.undo()` gives the model its
    own loss back.

    The model may be one of Transformers or have adapters of peft on other layers. Soft caps and factors of the logits
    (Gemma, Cohere, Granite) are found by running it on four tokens, with which its loss is checked as well; a model
    that does something else is refused.

    With gradient accumulation each micro-batch has its own AvUC loss, weighted by its share of the tokens.

    The loss is divided by the number of labels that `Trainer` counts, as the model's own loss is. For some models, such
    as GPT-2, and in older versions of Transformers this number includes the first label of each row, which no position
    predicts. The whole loss, cross-entropy and AvUC, is then smaller by the same factor, and so is `eval_loss`.
    `eval_token_nll` is the mean over the predicted tokens.

    Args:
        model: the language model; it is changed.
        kind: "avuc" (default), "ua_clm" (`avuc.losses.ua_clm_loss` in its place), or "plain": cross-entropy alone.
        beta: factor of AvUC or UA-CLM (default 1).
        variant: "monotone" (default), "paper", "stopgrad" or "soft"; see `avuc_quadrants`. UA-CLM has the first two.
        threshold: entropy in nats up to which a token is certain. Default None: it is learned, as in `AvUCLoss`.
        warmup_steps: forward passes in training before the threshold is set (default 100). AvUC is 0 until then.
        nll_weight: factor of the cross-entropy in training (default 1).
        eval_logits: whether the model in eval() mode also returns logits for a batch with labels, for
            `Trainer(compute_metrics=...)`. Default False. `model(..., skip_logits=False)` asks for them once.
        chunk_size: words per tile; see `linear_avuc`.
        backend: "auto" (default), "chunked" or "triton"; see `linear_avuc`.
        group: the data-parallel processes that share a batch: None (default) for all, False for this process alone.

    >>> import torch
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 20, "bos_token_id": 0, "eos_token_id": 0}
    >>> model = GPT2LMHeadModel(GPT2Config(**sizes))
    >>> callback = use_linear_avuc(model, warmup_steps=10)
    >>> ids = torch.tensor([[1, 2, 3, 4]])
    >>> outputs = model(input_ids=ids, labels=ids)
    >>> outputs.loss.backward()
    >>> outputs.logits is None
    True
    """
    one_of("kind", kind, KINDS)
    one_of("variant", variant, UA_CLM_VARIANTS if kind == "ua_clm" else VARIANTS)
    one_of("backend", backend, BACKENDS)
    if chunk_size is not None:
        checked_whole("use_linear_avuc: chunk_size", chunk_size, least=1)
    checked_whole("use_linear_avuc: warmup_steps", warmup_steps, least=1)
    options = {
        "kind": kind,
        "beta": checked_number("use_linear_avuc: beta", beta),
        "variant": variant,
        "nll_weight": checked_number("use_linear_avuc: nll_weight", nll_weight),
        "chunk_size": chunk_size,
        "backend": backend,
        "group": group,
    }
    steps = warmup_steps if threshold is None else None
    avuc = AvUCLoss(variant=variant, threshold=threshold, warmup_steps=steps, group=group)
    return LinearAvUCCallback(model, avuc, options, eval_logits=eval_logits)
