"""Networks other than CIFAR ResNets: training step and sample of a posterior, compared with the deterministic network.

    python benchmarks/bench_any_net.py [--only resnet50] [--profile] [--device cpu] [--json OUT]

ResNet-50 and ViT-B/16 (torchvision), EfficientNet-Lite0 (efficientnet-lite-pytorch) at batch 64, 224 × 224; an encoder
of the size of BERT-base (nn.TransformerEncoder) at batch 64, 128 tokens. All in bfloat16 under autocast, compiled.

step: cross-entropy + KL/50,000 + 3·AvUC of to_bayesian(net, prior="moped") and Adam, over the deterministic network's
step with the same loss without KL and the same Adam. Goal: at most 1.2.

draw: one draw of a Predictor, from the noise to the running sums of the predictions, over one forward pass of the
deterministic network, compiled by torch.compile. memory=0: every draw is new. Goal: at most 1.1. "graph" is the same
pass with weights in bfloat16 and a CUDA graph (mode="reduce-overhead"), the fastest deterministic pass of torch.

bayesian-torch, where it is installed and can convert the network: its eager step and draw, with the same autocast.

Each network and part has a process of its own: those of one part compile together, and then measure one at a time.
About 75 s if torch.compile finds its cache of an earlier run, else 2 to 3 minutes: each network is compiled five times.
--device cpu runs small networks of the same kinds without the compiler, only to show that everything runs.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from any_net_parts import PARTS, Net, reason, tables
from any_nets import NETS

from avuc.core.atomic import write_text

STEP_GOAL, DRAW_GOAL = 1.2, 1.1


def child(name: str, part: str, options: argparse.Namespace) -> None:
    """Compile, wait until the others have compiled, then measure alone and write the result."""
    folder, began = options.rendezvous, time.perf_counter()
    target = folder / f"{name}.{part}.json"
    ready = folder / f"{name}.{part}.ready"
    try:
        net = Net(name, torch.device(options.device))
        if part == "step":
            os.nice(10)  # the other part compiles faster and measures first
        net.prepare(part)
        ready.touch()
        others = f"*.{part}.ready"
        while len(list(folder.glob(others))) < len(options.only) and time.perf_counter() - began < options.patience:
            time.sleep(0.05)
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            result = net.measure(part)
            write_text(target, json.dumps(result))
            if part in options.profile:
                try:
                    write_text(folder / f"{name}.{part}.txt", tables(net, part))
                except Exception as error:  # the times are there
                    write_text(target, json.dumps(result | {"profile": reason(error)}))
    except ImportError as error:
        write_text(target, json.dumps({"left_out": str(error)}))
    except Exception as error:
        traceback.print_exc()
        write_text(target, json.dumps({"error": f"{part}: {reason(error)}"}))
    finally:
        ready.touch()


def report(results: list[dict[str, Any]]) -> bool:
    print(
        f"{'network':19} {'step ms':>8} {'over det.':>9} {'draw ms':>8} {'over det.':>9} {'over graph':>10}  peer/avuc"
    )
    reached = True
    for found in results:
        line = f"{found['net']:19}"
        if "left_out" in found:
            print(f"{line} left out: {found['left_out']}")
            continue
        nan = float("nan")
        step, draw = found.get("step_ms", {}), found.get("draw_ms", {})
        peers = [f"{part['peer'] / part['avuc']:.1f}" if "peer" in part else "cannot" for part in (step, draw)]
        ratios = [found.get(key, nan) for key in ("step_ratio", "draw_ratio", "draw_over_graph")]
        reached = reached and ratios[0] <= STEP_GOAL and ratios[1] <= DRAW_GOAL
        print(
            f"{line} {step.get('avuc', nan):8.2f} {ratios[0]:9.2f} {draw.get('avuc', nan):8.3f} {ratios[1]:9.2f} "
            f"{ratios[2]:10.2f}  step {peers[0]}, draw {peers[1]}"
        )
    for found in results:
        for part in ("step", "draw"):
            if f"{part}_first_s" in found:
                times = ", ".join(f"{key} {value:.0f} s" for key, value in found[f"{part}_first_s"].items())
                print(f"{found['net']}, first calls of {part}: {times}")
        others = [f"{key} {found[key]}" for key in ("how", "max_difference", "pieces_ms", "error") if key in found]
        print(f"{found['net']}: {'; '.join(others)}")
    return reached


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--only", choices=NETS, nargs="+", default=list(NETS), help="these networks alone")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS), help="one of the two parts alone")
    parser.add_argument(
        "--profile", nargs="*", choices=PARTS, help="kernel tables into $OUT (default: the working folder); of one part"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--patience", type=float, default=240, help="seconds to wait for others that still compile")
    parser.add_argument("--limit", type=float, default=400, help="seconds after which what is missing is left out")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.profile = () if options.profile is None else options.profile or PARTS
    if options.child:
        child(*options.child, options)
        return 0
    start = time.perf_counter()
    out = Path(os.environ.get("OUT", "."))
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(name, part) for name in options.only for part in options.part]
        hidden = ["--rendezvous", folder, "--child"]
        threads = str(max(1, (os.cpu_count() or 1) // len(pairs)))
        environment = os.environ | {"OMP_NUM_THREADS": threads}
        processes = [
            subprocess.Popen([sys.executable, __file__, *sys.argv[1:], *hidden, *pair], env=environment)
            for pair in pairs
        ]
        for process in processes:
            try:
                process.wait(max(0.1, options.limit - (time.perf_counter() - start)))
            except subprocess.TimeoutExpired:
                process.kill()
        results = []
        for name in options.only:
            found: dict[str, Any] = {"net": name}
            for part in options.part:
                path = Path(folder) / f"{name}.{part}.json"
                one = json.loads(path.read_text()) if path.exists() else {"error": f"{part}: no result in time"}
                if "error" in one and "error" in found:
                    one["error"] = f"{found['error']}; {one['error']}"
                found |= one
            results.append(found)
            texts = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob(f"{name}.*.txt"))]
            if texts:
                write_text(out / f"kernels_{name}.txt", "".join(texts))
    machine = torch.cuda.get_device_name() if options.device == "cuda" else "CPU, small networks: only a trial"
    print(f"{machine}, torch {torch.__version__}, {time.perf_counter() - start:.0f} s in all")
    reached = report(results)
    if options.json:
        write_text(options.json, json.dumps(results, indent=1) + "\n")
    return 0 if reached or options.device == "cpu" else 1


if __name__ == "__main__":
    sys.exit(main())
