"""Names of version 0.1.0 that have moved or were renamed: they still import, with a warning that says the new name.

`import avuc` puts `Finder` before Python's own finders, so that a folder left over from an older version does not hide
a module that moved. A module or package that lost a name forwards it with `__getattr__ = forward(__name__)`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

# module of version 0.1.0 -> module that has its names now
MODULES = {
    "avuc.assessment": "avuc.evaluation.evaluate",
    "avuc.atomic": "avuc.core.atomic",
    "avuc.batches": "avuc.prediction.inputs",
    "avuc.calibrated": "avuc.training.default",
    "avuc.calibration.scaled": "avuc.calibration.scaled_logits",
    "avuc.calibration.search": "avuc.calibration.scalar_search",
    "avuc.cells": "avuc.losses.quadrants",
    "avuc.comparison": "avuc.evaluation.compare",
    "avuc.demo": "avuc.study.demo",
    "avuc.draws": "avuc.posterior",
    "avuc.errors": "avuc.core.errors",
    "avuc.fused": "avuc.losses.analytic",
    "avuc.kernels": "avuc.gpu.kernels",
    "avuc.kernels.augmix": "avuc.gpu.kernels.augmix",
    "avuc.kernels.build": "avuc.gpu.kernels.build",
    "avuc.kernels.conv3x3": "avuc.gpu.kernels.conv3x3",
    "avuc.kernels.conv3x3_launch": "avuc.gpu.kernels.conv3x3_launch",
    "avuc.kernels.norm": "avuc.gpu.stacked.layers",
    "avuc.kernels.resnet_forward": "avuc.gpu.kernels.resnet_forward",
    "avuc.last_layer": "avuc.prediction.backends.shared_trunk",
    "avuc.methods.statistics": "avuc.methods.batch_norm",
    "avuc.metrics.absolute": "avuc.metrics.resampling.absolute_error",
    "avuc.metrics.accumulator": "avuc.metrics.streaming.accumulator",
    "avuc.metrics.streaming_detection": "avuc.metrics.streaming.detection",
    "avuc.moments": "avuc.prediction.running_sums",
    "avuc.nets.start": "avuc.nets.common",
    "avuc.predictor": "avuc.prediction.predictor",
    "avuc.progress": "avuc.core.progress",
    "avuc.ranks": "avuc.core.data_parallel",
    "avuc.report.beside": "avuc.report.study.paper_comparison",
    "avuc.report.charts": "avuc.report.single.charts",
    "avuc.report.effort": "avuc.report.study.effort",
    "avuc.report.embed": "avuc.report.study.embed",
    "avuc.report.exports": "avuc.report.study.exports",
    "avuc.report.figures": "avuc.report.study.figures",
    "avuc.report.html": "avuc.report.single.page",
    "avuc.report.intervals": "avuc.report.study.intervals",
    "avuc.report.paired": "avuc.report.study.paired",
    "avuc.report.pooled": "avuc.report.study.pooled",
    "avuc.report.results": "avuc.report.study.results",
    "avuc.report.study_page": "avuc.report.study.page",
    "avuc.report.tables": "avuc.report.study.tables",
    "avuc.report.verdict": "avuc.report.study.verdict",
    "avuc.report.words": "avuc.report.metric_text",
    "avuc.rows": "avuc.losses.softmax_statistics",
    "avuc.scores": "avuc.evaluation.files",
    "avuc.scores.checks": "avuc.evaluation.files.decision.checks",
    "avuc.scores.columns": "avuc.evaluation.files.columns.columns",
    "avuc.scores.csv": "avuc.evaluation.files.formats.csv",
    "avuc.scores.file": "avuc.evaluation.files.read",
    "avuc.scores.names": "avuc.evaluation.files.names",
    "avuc.scores.npy": "avuc.evaluation.files.formats.arrays",
    "avuc.scores.parquet": "avuc.evaluation.files.formats.parquet",
    "avuc.scores.tensors": "avuc.evaluation.files.formats.arrays",
    "avuc.shifts.plasma": "avuc.shifts.weather",
    "avuc.study.background": "avuc.study.engines.background",
    "avuc.study.claims": "avuc.study.engines.claims",
    "avuc.study.engine": "avuc.study.engines.run",
    "avuc.study.export": "avuc.study.store.export",
    "avuc.study.growth": "avuc.study.recipe.resumable",
    "avuc.study.judge": "avuc.study.evaluation.judge",
    "avuc.study.local": "avuc.study.engines.local",
    "avuc.study.parts": "avuc.study.recipe.config",
    "avuc.study.photographs": "avuc.study.data.photographs",
    "avuc.study.ray": "avuc.study.engines.ray",
    "avuc.study.sets": "avuc.study.data.sets",
    "avuc.study.shown": "avuc.study.evaluation.examples",
    "avuc.study.tables": "avuc.study.recipe.tables",
    "avuc.study.toml": "avuc.study.recipe.toml",
    "avuc.study.work": "avuc.study.worker",
    "avuc.tensorfile": "avuc.core.tensor_file",
    "avuc.thinned": "avuc.prediction.backends.dropout_masks",
    "avuc.training.member": "avuc.training.model_trainer",
    "avuc.training.stacked": "avuc.gpu.stacked.steps",
    "avuc.training.stacked_choice": "avuc.gpu.stacked.choice",
    "avuc.training.stacked_draw": "avuc.gpu.stacked.sampling",
    "avuc.training.stacked_layers": "avuc.gpu.stacked.layers",
    "avuc.training.stacked_masks": "avuc.gpu.stacked.dropout",
    "avuc.training.stacked_net": "avuc.gpu.stacked.net",
    "avuc.training.stacked_weights": "avuc.gpu.stacked.weights",
    "avuc.ways": "avuc.prediction.backends.generic",
    "avuc.whole_net": "avuc.gpu.fused_resnet",
}

# module and name of version 0.1.0 -> module and name of today, where it is not the same name in MODULES[module]
NAMES: dict[str, str] = {
    "avuc.assessment.Assessment": "avuc.evaluation.result.EvaluationResult",
    "avuc.assessment.Bounds": "avuc.evaluation.result.Bounds",
    "avuc.assessment.Series": "avuc.evaluation.result.Series",
    "avuc.assessment.assess": "avuc.evaluation.evaluate.evaluate",
    "avuc.assessment.bounds": "avuc.evaluation.result.interval_bounds",
    "avuc.assessment.judged": "avuc.evaluation.evaluate.evaluate_statistics",
    "avuc.assessment.late_progress": "avuc.core.progress.delayed_progress",
    "avuc.assessment.plain": "avuc.evaluation.result.json_value",
    "avuc.calibration.scaled.Columns": "avuc.calibration.scaled_logits.ScaledPredictions",
    "avuc.calibration.scaled.calm_threads": "avuc.calibration.scaled_logits.limited_threads",
    "avuc.calibration.search.bounded_minimum": "avuc.calibration.scalar_search.brent_minimum",
    "avuc.calibration.search.convex_minimum": "avuc.calibration.scalar_search.newton_minimum",
    "avuc.calibration.search.falling_root": "avuc.calibration.scalar_search.decreasing_root",
    "avuc.cells.Cells": "avuc.losses.quadrants.Quadrants",
    "avuc.cells.avuc_cells": "avuc.losses.quadrants.avuc_quadrants",
    "avuc.cli.calibrate.METHODS": "avuc.core.calibrator_names.CALIBRATOR_NAMES",
    "avuc.demo.tell": "avuc.study.demo.run_demo",
    "avuc.draws.predict": "avuc.prediction.predict.predict",
    "avuc.fused.fused_avuc": "avuc.losses.analytic.analytic_avuc",
    "avuc.kernels.build.reason_against": "avuc.gpu.kernels.build.unsupported_reason",
    "avuc.kernels.conv3x3.reason_against": "avuc.gpu.kernels.conv3x3.unsupported_reason",
    "avuc.kernels.conv3x3_launch.reason_against": "avuc.gpu.kernels.conv3x3_launch.unsupported_reason",
    "avuc.last_layer.LastLayer": "avuc.prediction.backends.shared_trunk.SharedTrunkBackend",
    "avuc.methods.statistics.OwnStatistics": "avuc.methods.batch_norm.PerDrawBatchNorm",
    "avuc.methods.statistics.measured_again": "avuc.methods.batch_norm.measure_statistics",
    "avuc.methods.statistics.spread_out": "avuc.methods.batch_norm.evenly_spaced",
    "avuc.metrics.accumulator.CELLS": "avuc.metrics.log_histogram.LOG_BINS",
    "avuc.metrics.accumulator.cell_edges": "avuc.metrics.log_histogram.log_bin_edges",
    "avuc.metrics.accumulator.cell_index": "avuc.metrics.log_histogram.log_bin_index",
    "avuc.metrics.avu.Counts": "avuc.metrics.avu.QuadrantCounts",
    "avuc.metrics.avu.auto_threshold": "avuc.metrics.threshold.auto_threshold",
    "avuc.metrics.detection.spearman": "avuc.metrics.rank_correlation.spearman",
    "avuc.metrics.intervals.detection_intervals": "avuc.metrics.detection_bootstrap.detection_intervals",
    "avuc.metrics.resampling.Resampler": "avuc.metrics.resampling.rows.RowResampler",
    "avuc.metrics.resampling.draws": "avuc.metrics.resampling.rows.resampled_rows",
    "avuc.metrics.resampling.replicate": "avuc.metrics.resampling.rows.resampled_errors",
    "avuc.metrics.resampling.weight_blocks": "avuc.metrics.resampling.rows.weight_blocks",
    "avuc.metrics.statistics.BinTable": "avuc.metrics.binning.BinTable",
    "avuc.metrics.statistics.Groups": "avuc.metrics.ties.TieGroups",
    "avuc.metrics.statistics.bin_index": "avuc.metrics.binning.bin_index",
    "avuc.metrics.statistics.blocks": "avuc.metrics.statistics.statistics_blocks",
    "avuc.metrics.statistics.cumulative": "avuc.metrics.ties.cumulative",
    "avuc.metrics.statistics.group": "avuc.metrics.ties.group_ties",
    "avuc.metrics.statistics.summarise": "avuc.metrics.statistics.prediction_statistics",
    "avuc.moments.DrawSums": "avuc.prediction.running_sums.SampleSums",
    "avuc.rows.RowStatistics": "avuc.losses.softmax_statistics.SoftmaxStatistics",
    "avuc.rows.row_statistics": "avuc.losses.softmax_statistics.softmax_statistics",
    "avuc.scores.FORMATS": "avuc.evaluation.files.find.FORMATS",
    "avuc.scores.KINDS": "avuc.evaluation.files.reading.KINDS",
    "avuc.scores.LABEL_NAMES": "avuc.evaluation.files.names.LABEL_NAMES",
    "avuc.scores.SCORE_NAMES": "avuc.evaluation.files.names.SCORE_NAMES",
    "avuc.scores.columns.pick_columns": "avuc.evaluation.files.columns.choose.choose_columns",
    "avuc.scores.file.FORMATS": "avuc.evaluation.files.find.FORMATS",
    "avuc.scores.file.KINDS": "avuc.evaluation.files.reading.KINDS",
    "avuc.scores.file.write_scores": "avuc.evaluation.files.write.write_scores",
    "avuc.scores.file.ScoreFile": "avuc.evaluation.files.score_file.ScoreFile",
    "avuc.scores.file.describe": "avuc.evaluation.files.score_file.describe",
    "avuc.scores.names.Found": "avuc.evaluation.files.names.RawScores",
    "avuc.scores.names.Wanted": "avuc.evaluation.files.names.ReadOptions",
    "avuc.scores.names.also_there": "avuc.evaluation.files.names.other_scores_note",
    "avuc.scores.names.choose": "avuc.evaluation.files.names.choose_name",
    "avuc.scores.names.listing": "avuc.evaluation.files.messages.listing",
    "avuc.scores.names.refuse": "avuc.evaluation.files.messages.file_error",
    "avuc.scores.names.swap_word": "avuc.evaluation.files.names.label_file_name",
    "avuc.scores.tensors.labels_tensors": "avuc.evaluation.files.formats.arrays.labels_safetensors",
    "avuc.scores.tensors.scores_tensors": "avuc.evaluation.files.formats.arrays.read_safetensors",
    "avuc.scores.tensors.write_scores_tensors": "avuc.evaluation.files.formats.arrays.write_safetensors",
    "avuc.study.engine.ENGINES": "avuc.study.ENGINES",
    "avuc.study.engine.run_study": "avuc.study.run_study",
    "avuc.study.growth.refuse_other": "avuc.study.recipe.resumable.check_resumable",
    "avuc.study.judge.Judgement": "avuc.study.store.records.MetricsAndCurves",
    "avuc.study.judge.kept_logits": "avuc.prediction.logits.kept_logits",
    "avuc.study.parts.DataPart": "avuc.study.recipe.sections.DataConfig",
    "avuc.study.parts.NetPart": "avuc.study.recipe.sections.NetConfig",
    "avuc.study.parts.Row": "avuc.study.recipe.config.MethodConfig",
    "avuc.study.parts.StudyPart": "avuc.study.recipe.sections.StudySettings",
    "avuc.study.recipe.CalibratorSpec": "avuc.study.recipe.sections.CalibratorSpec",
    "avuc.study.recipe.DataPart": "avuc.study.recipe.sections.DataConfig",
    "avuc.study.recipe.NetPart": "avuc.study.recipe.sections.NetConfig",
    "avuc.study.recipe.OtherData": "avuc.study.recipe.other_data.OtherData",
    "avuc.study.recipe.Recipe": "avuc.study.Recipe",
    "avuc.study.recipe.Row": "avuc.study.recipe.config.MethodConfig",
    "avuc.study.recipe.StudyPart": "avuc.study.recipe.sections.StudySettings",
    "avuc.study.recipe.load_recipe": "avuc.study.load_recipe",
    "avuc.study.recipe.parse_recipe": "avuc.study.recipe.parser.parse_recipe",
    "avuc.study.recipe.recipe_names": "avuc.study.recipe.load.recipe_names",
    "avuc.study.recipe.slug": "avuc.study.recipe.names.slug",
    "avuc.study.shown.shown_of": "avuc.study.evaluation.examples.examples_of",
    "avuc.study.store.Cell": "avuc.study.store.records.Evaluation",
    "avuc.study.store.Store": "avuc.study.Store",
    "avuc.study.store.Trained": "avuc.study.store.records.Trained",
    "avuc.study.tables.Place": "avuc.study.recipe.tables.Location",
    "avuc.study.work.Learned": "avuc.study.evaluation.validation_fit.ValidationFit",
    "avuc.study.work.Work": "avuc.study.worker.StudyWorker",
    "avuc.study.work.learned_of": "avuc.study.evaluation.validation_fit.validation_fit",
    "avuc.training.captured.FastSteps": "avuc.training.captured.CapturedSteps",
    "avuc.training.checkpoint.load_member": "avuc.training.checkpoint.load_trainer",
    "avuc.training.checkpoint.member_tensors": "avuc.training.checkpoint.trainer_tensors",
    "avuc.training.member.Member": "avuc.training.model_trainer.ModelTrainer",
    "avuc.training.stacked_choice.reason_against": "avuc.gpu.stacked.choice.unsupported_reason",
    "avuc.ways.AT_ONCE": "avuc.prediction.backends.backend.SAMPLES_PER_CHUNK",
    "avuc.ways.Parts": "avuc.prediction.backends.backend.NetWithWeights",
    "avuc.ways.Plain": "avuc.prediction.backends.generic.GenericBackend",
    "avuc.ways.Way": "avuc.prediction.backends.backend.Backend",
    "avuc.ways.bytes_of": "avuc.prediction.backends.backend.bytes_of",
    "avuc.ways.draws_at_once": "avuc.prediction.backends.backend.samples_per_chunk",
    "avuc.ways.parts_of": "avuc.prediction.backends.backend.net_with_weights",
    "avuc.whole_net.WholeNet": "avuc.gpu.fused_resnet.FusedResNetBackend",
}


def forward(module: str) -> Callable[[str], object]:
    """Return a module-level `__getattr__` that finds the names `module` had in version 0.1.0.

    Args:
        module: name of the module, as in `__name__`; of version 0.1.0 or of today.
    """

    def __getattr__(name: str) -> object:
        old = f"{module}.{name}"
        if old in NAMES:
            home, _, new = NAMES[old].rpartition(".")
        elif module in MODULES and not name.startswith("__"):
            home, new = MODULES[module], name
        else:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            value: object = getattr(import_module(home), new)
        except AttributeError:
            raise AttributeError(f"module {module!r} has no attribute {name!r}") from None
        warnings.warn(f"{old} is now {home}.{new}", DeprecationWarning, stacklevel=2)
        return value

    return __getattr__


class Finder:
    """Finds modules of version 0.1.0 that have moved.

    A finder and loader without their base classes, because `importlib.abc` would take half the time of `import avuc`.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        return ModuleSpec(fullname, self, is_package=_is_package(fullname))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = forward(module.__name__)  # type: ignore[method-assign]


def _is_package(name: str) -> bool:
    return any(other.startswith(f"{name}.") for other in MODULES)


def install() -> None:
    """Let Python find the modules of version 0.1.0. Calling it again changes nothing."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
