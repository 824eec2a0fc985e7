"""The paper's numbers as data."""

import math

import pytest

from crossclr.studies.paper_numbers import TARGETS, PaperNumber, paper_table

DATASETS = ("youcook2", "lsmdc")
TABLES = [
    (target, dataset)
    for target in TARGETS
    for dataset in DATASETS
    if not (target in ("modalities", "experts") and dataset == "youcook2")
    and not (target in ("ablation", "captioning") and dataset == "lsmdc")
]


@pytest.mark.parametrize(("target", "dataset"), TABLES)
def test_every_row_has_a_number_for_every_column(target, dataset):
    table = paper_table(target, dataset)
    columns = sum(len(metrics) for metrics in table.columns.values())
    assert all(len(numbers) == columns for numbers in table.rows.values())
    assert table.rows or table.claims


@pytest.mark.parametrize(("target", "dataset"), TABLES)
def test_recall_grows_with_k(target, dataset):
    table = paper_table(target, dataset)
    for row in table.rows:
        for group, metrics in table.columns.items():
            recalls = [table.number(row, group, metric) for metric in metrics if metric.startswith("R@")]
            found = [number.mean for number in recalls if number is not None]
            assert found == sorted(found), row


def test_numbers_that_several_tables_print_agree():
    losses = paper_table("losses", "youcook2").rows["CrossCLR"]
    assert losses == paper_table("ablation", "youcook2").rows["weighting + intra-modal term + pruning"]
    assert losses == paper_table("multiple-positives", "youcook2").rows["CrossCLR"]
    assert losses[:3] == paper_table("state-of-the-art", "youcook2").rows["CrossCLR"]
    assert (
        paper_table("losses", "lsmdc").rows["CrossCLR"] == paper_table("multiple-positives", "lsmdc").rows["CrossCLR"]
    )
    experts = paper_table("experts", "lsmdc").rows["action + appearance"]
    assert paper_table("losses", "lsmdc").rows["CrossCLR"][:3] == experts[:3]


def test_the_grid_of_modalities_has_the_means_that_the_paper_prints():
    rows = paper_table("modalities", "lsmdc").rows
    printed = [row for row in rows if "mean" in row]
    assert len(printed) == 20
    for row in printed:
        query, _, target, loss = row.replace(":", "").split(" ")
        members = [
            numbers
            for name, numbers in rows.items()
            if "mean" not in name
            and name.endswith(f": {loss}")
            and (query == "mean" or name.startswith(f"{query} → "))
            and (target == "mean" or f"→ {target}:" in name)
        ]
        assert len(members) == 4
        for place in range(2):
            mean = sum(numbers[place].mean for numbers in members) / 4
            assert math.isclose(mean, rows[row][place].mean, abs_tol=0.36), (row, mean)  # the paper rounds some oddly


def test_a_target_that_the_paper_does_not_show_is_an_error():
    with pytest.raises(ValueError, match="on lsmdc only"):
        paper_table("modalities", "youcook2")
    with pytest.raises(ValueError, match="there is no target 'table-1'"):
        paper_table("table-1", "youcook2")
    assert PaperNumber.parse("19.5±0.49").std == 0.49
    captions = paper_table("captioning", "youcook2")
    assert [captions.decimals("captions", metric) for metric in ("B@4", "CIDEr-D")] == [2, 2]
