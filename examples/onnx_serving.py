"""Export a calibrated posterior to ONNX, and serve it in a process that has no torch. Needs avuc[onnx].

python examples/onnx_serving.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

import numpy as np
import torch
from sklearn.datasets import load_digits

from avuc import Predictor, predict, to_bayesian
from avuc.calibration import TemperatureScaling
from avuc.deploy import as_module

SERVER = """
import sys
sys.modules["torch"] = None  # this process has no torch
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
probs, entropy = session.run(["probs", "entropy"], {"pixels": np.load("pixels.npy")})
np.savez("served.npz", probs=probs, entropy=entropy)
print(f"served {len(probs)} images; the least certain is number {entropy.argmax()}, entropy {entropy.max():.2f} nats")
"""


def main() -> None:
    digits = load_digits()
    pixels, labels = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    posterior = to_bayesian(net, layers="last")
    optimiser = torch.optim.Adam(posterior.parameters(), 0.01)
    for _ in range(100):
        loss = torch.nn.functional.cross_entropy(posterior(pixels[:1000]), labels[:1000]) + posterior.kl() / 100_000
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    calibrator = TemperatureScaling().fit(Predictor(posterior, samples=16).logits(pixels[1000:1400]), labels[1000:1400])

    module, test = as_module(posterior, calibrator, samples=16), pixels[1400:]
    with tempfile.TemporaryDirectory() as folder:
        options = {"dynamic_shapes": ({0: torch.export.Dim("batch")},), "input_names": ["pixels"], "verbose": False}
        torch.onnx.export(
            module, (test[:2],), f"{folder}/net.onnx", dynamo=True, output_names=list(module.outputs), **options
        )
        np.save(f"{folder}/pixels.npy", test.numpy())
        subprocess.run([sys.executable, "-c", SERVER], cwd=folder, check=True)
        probs = predict(posterior, test, samples=16, calibrator=calibrator, progress=False).probs.numpy()
        print(f"largest difference from predict: {abs(np.load(f'{folder}/served.npz')['probs'] - probs).max():.1e}")


if __name__ == "__main__":
    main()
