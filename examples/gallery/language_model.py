"""A language model knows which characters it cannot guess, and AvUC can train it without holding its logits.

`linear_avuc` takes hidden states and the weight of the output layer, and returns cross-entropy plus AvUC, with memory
that does not grow with the vocabulary. A small recurrent network learns Python's own manual, character by character.
The picture colours unseen text by entropy: the beginnings of words are uncertain, their ends are not. One run, one
seed.

Topic: Train
Picture: A few lines of Python's manual with each character coloured by the entropy of its prediction.
"""

from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import torch
from torch import nn

import avuc
from avuc import Predictions, metrics

text = "".join(character for character in topics["compound"][:24000] if character.isascii())
letters = sorted(set(text))
ids = torch.tensor([letters.index(character) for character in text])
LENGTH, cut = 60, int(0.9 * len(ids)) // 60 * 60
train, test = ids[:cut].view(-1, LENGTH), ids[cut : cut + (len(ids) - cut) // LENGTH * LENGTH].view(-1, LENGTH)

torch.manual_seed(0)
embed, recurrent, head = nn.Embedding(len(letters), 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, len(letters))
parameters = [parameter for part in (embed, recurrent, head) for parameter in part.parameters()]
optimizer = torch.optim.Adam(parameters, 1e-2)
for epoch in range(6):
    for rows in train[torch.randperm(len(train))].split(16):
        hidden = recurrent(embed(rows))[0]
        beta = 0.3 if epoch >= 4 else 0.0  # AvUC joins in the last epochs
        result = avuc.linear_avuc(hidden, head.weight, rows, bias=head.bias, threshold=1.0, beta=beta, shift=True)
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()

with torch.no_grad():
    logits = head(recurrent(embed(test))[0])[:, :-1]
predictions = Predictions.from_logits(logits, test[:, 1:], class_dim=-1)  # (N, T, characters) and (N, T)
values = metrics.evaluate(predictions)
print(", ".join(f"{name} {values[name]:.3f}" for name in ("accuracy", "nll", "ece", "avu")))
entropy = predictions.to_map(predictions.entropy)
figure, ax = plt.subplots(figsize=(9, 2.2), layout="constrained")
ax.imshow(entropy[:5], cmap="Oranges", vmin=0, vmax=5, aspect="auto")
for line, row in enumerate(test[:5, 1:].tolist()):
    for place, letter in enumerate(row):
        shown = letters[letter].replace("\n", "¶").replace("$", r"\$")
        ax.text(place, line, shown, family="monospace", color="black", ha="center", va="center", fontsize=10)
ax.set_axis_off()
figure.savefig("language_model.svg")
