"""Fine-tune a small GPT-2 with cross-entropy + AvUC, without ever holding its logits.

The text is Python's own manual, which comes with Python; each character is a token.
"""

import tempfile
from pydoc_data.topics import topics
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from avuc.transformers import use_linear_avuc

torch.set_num_threads(1)  # the model is too small for more
LENGTH = 32
text = topics["compound"]
characters = sorted(set(text))
ids = torch.tensor([characters.index(character) for character in text])
rows = ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)
data = [{"input_ids": row, "labels": row} for row in rows]  # the model itself shifts the labels to the next character
held_out = {"eval_dataset": data[::10]}
training = {"train_dataset": [row for number, row in enumerate(data) if number % 10]}

set_seed(0)
size = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": LENGTH, "vocab_size": len(characters)}
model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))


def trainer(folder: str, steps: int, rate: float, callbacks: list[Any]) -> Trainer:
    """Return a `Trainer` for so many steps."""
    options = {"per_device_train_batch_size": 16, "per_device_eval_batch_size": 256, "save_strategy": "no"}
    args = TrainingArguments(folder, max_steps=steps, learning_rate=rate, report_to="none", use_cpu=True, **options)
    return Trainer(model, args, **training, **held_out, callbacks=callbacks)


with tempfile.TemporaryDirectory() as folder:
    trainer(folder, 300, 1e-2, []).train()  # the model that is fine-tuned
    callback = use_linear_avuc(model, beta=1.0, warmup_steps=20)  # the threshold is learned in the first 20 batches
    fine = trainer(folder, 60, 1e-3, [callback])
    before = fine.evaluate()
    fine.train()
    after = fine.evaluate()

print(f"certain: entropy up to {callback.threshold:.2f} nats")
for name in ("accuracy", "nll", "ece", "uce", "entropy_right", "entropy_wrong"):
    print(f"{name:14} {before[f'eval_token_{name}']:.3f} -> {after[f'eval_token_{name}']:.3f}")
prompt = torch.tensor([[characters.index(character) for character in "The "]])
words = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False)
print("".join(characters[word] for word in words[0]))
