"""A calibrated posterior runs in ONNX Runtime, without torch, and gives the same probabilities.

`as_module` turns sixteen posterior samples and a temperature into one module without randomness. It is exported once,
and the server needs onnxruntime and NumPy only. The outputs agree to rounding, so what was validated in Python is what
is served; entropy is an output, too, so the server can pass uncertain digits on.

Topic: Deploy
Picture: Entropy from ONNX Runtime against entropy from avuc.predict for 397 digits, all on the diagonal.
"""

import logging

import matplotlib.pyplot as plt
import onnxruntime
import torch
from sklearn.datasets import load_digits
from torch import nn

import avuc
from avuc.deploy import as_module

logging.getLogger("torch.onnx").setLevel(logging.ERROR)
pixels, labels = load_digits(return_X_y=True)
pixels, labels = torch.tensor(pixels / 16).float(), torch.tensor(labels)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
posterior = avuc.to_bayesian(net, layers="last")
optimizer = torch.optim.Adam(posterior.parameters(), 0.01)
for _ in range(100):
    loss = avuc.elbo_loss(posterior(pixels[:1000]), labels[:1000], posterior.kl(), num_train=1000, kl_weight=0.01)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
held_out = avuc.Predictor(posterior, samples=16).logits(pixels[1000:1400])
calibrator = avuc.TemperatureScaling().fit(held_out, labels[1000:1400])

module, test = as_module(posterior, calibrator, samples=16, outputs=("probs", "entropy")), pixels[1400:]
shapes = {"dynamic_shapes": ({0: torch.export.Dim("batch")},), "input_names": ["pixels"], "verbose": False}
names = list(module.outputs)
torch.onnx.export(module, (test[:2],), "net.onnx", dynamo=True, output_names=names, **shapes)

session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])  # in the server
probs, entropy = session.run(names, {"pixels": test.numpy()})
expected = avuc.predict(posterior, test, samples=16, calibrator=calibrator, progress=False)
print(f"largest difference of a probability: {abs(probs - expected.probs.numpy()).max():.0e}")

figure, ax = plt.subplots()
ax.plot([0, 2], [0, 2], "C4:", linewidth=1)
ax.plot(expected.entropy, entropy, "o", markersize=4)
ax.set(xlabel="entropy from avuc.predict (nats)", ylabel="entropy from ONNX Runtime (nats)")
figure.savefig("onnx_runtime.svg")
