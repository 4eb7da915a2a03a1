"""Shifts of your own have the name of their function in a report, not their import path with holes in it."""

from __future__ import annotations

from dataclasses import replace

from avuc.report.study.embed import payload
from avuc.report.study.page import study_page
from avuc.report.study.tables import all_tables

PATH = "my_package.shifts:heavy_rain"


def renamed(results, names):
    names = dict(zip(results.shifts, names, strict=False))
    own = {
        "test_sets": [(names.get(shift, shift), severity) for shift, severity in results.test_sets],
        "gallery": {(names.get(shift, shift), severity): data for (shift, severity), data in results.gallery.items()},
    }
    return replace(results, **own)


def first_cells(results, name):
    return [row[0] for table in all_tables(results) if table.name == name for row in table.rows]


def test_an_import_path_is_shown_as_its_function(results):
    own = renamed(results, [PATH])
    assert "heavy rain" in first_cells(own, "detection-auroc")
    assert payload(own)["shift_names"][PATH] == "heavy rain"
    page = study_page(own)
    assert "my package" not in page
    assert "heavy rain" in page


def test_a_file_keeps_its_name(results):
    own = renamed(results, ["texts/other_reviews.csv"])
    assert "other_reviews.csv" in first_cells(own, "detection-auroc")


def test_two_functions_of_one_name_keep_their_modules(results):
    own = renamed(results, ["rain_a:wet", "rain_b:wet"])
    assert {"rain_a:wet", "rain_b:wet"} <= set(first_cells(own, "detection-auroc"))
