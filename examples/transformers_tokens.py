"""What is each name of a line of Python: a call, an attribute, an argument, or plain? Token classification with AvUC.

The data is real and needs no download: `tokenize` labels the source of the standard library. The model sees the names
of a line without the punctuation, so it cannot be sure. Keywords have no such role: they get the label −100 and are
left out of the loss and of the metrics.
"""

import keyword
import logging
import tempfile
import tokenize
from collections import Counter
from itertools import pairwise
from pathlib import Path

import torch
from transformers import BertConfig, BertForTokenClassification, TrainingArguments, set_seed

from avuc import AvUCLoss
from avuc.transformers import AvUCTrainer, compute_metrics

LENGTH, WORDS, IGNORED = 8, 1000, -100
ROLES = {"(": 1, ".": 2, "=": 3}  # what follows a name; anything else: 0
set_seed(0)

lines: list[list[tuple[str, int]]] = []
for path in sorted(Path(logging.__file__).parents[1].glob("[a-d]*.py")):
    line = []
    with tokenize.open(path) as file:
        for token, after in pairwise(tokenize.generate_tokens(file.readline)):
            if token.type == tokenize.NAME:
                role = IGNORED if keyword.iskeyword(token.string) else ROLES.get(after.string, 0)
                line.append((token.string, role))
            elif token.type == tokenize.NEWLINE:
                lines.append(line[:LENGTH])
                line = []
lines = [line for line in lines if len(line) > 2]
lines = [lines[i] for i in torch.randperm(len(lines))[:3000]]
common = Counter(word for line in lines for word, _ in line).most_common(WORDS - 2)
vocabulary = {word: number for number, (word, _) in enumerate(common, start=2)}  # 0 is padding, 1 an unknown word
rows = []
for line in lines:
    ids = torch.tensor([vocabulary.get(word, 1) for word, _ in line] + [0] * (LENGTH - len(line)))
    labels = torch.tensor([role for _, role in line] + [IGNORED] * (LENGTH - len(line)))
    rows.append({"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels})

size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForTokenClassification(BertConfig(vocab_size=WORDS, num_labels=4, **size))
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(folder, num_train_epochs=4, learning_rate=5e-3, per_device_train_batch_size=64)
    avuc = AvUCLoss(beta=1.0, warmup_steps=60)  # no epochs needed: the threshold is learned in the first 60 batches
    options = {"train_dataset": rows[:2000], "eval_dataset": rows[2000:], "compute_metrics": compute_metrics}
    trainer = AvUCTrainer(model, args, avuc=avuc, **options)
    trainer.train()
    figures = trainer.evaluate()
print(f"certain: entropy up to {float(avuc.threshold):.2f} nats")
print({name: round(figures[f"eval_{name}"], 3) for name in ("accuracy", "nll", "ece", "uce", "avu_auc", "aurc")})
