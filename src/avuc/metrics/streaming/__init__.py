"""Metrics with a state of fixed size: update with batches, merge over processes and files, compute.

suite.py        StreamingMetrics: every metric of `METRICS`
detection.py    StreamingDetection: the metrics of `detection`
iou.py          StreamingIoU: intersection over union
accumulator.py  the sums behind them
"""

from avuc.metrics.streaming.detection import StreamingDetection as StreamingDetection
from avuc.metrics.streaming.iou import StreamingIoU as StreamingIoU
from avuc.metrics.streaming.suite import StreamingMetrics as StreamingMetrics
