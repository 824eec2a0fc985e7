"""Each sign of a run that does not learn gives one warning; a healthy run gives none."""

from dataclasses import asdict

import pytest

from crossclr.training.health import Health


def epochs(count=8, **columns):
    """Records of epochs; a column is a number or a list with one number for each epoch."""
    for epoch in range(count):
        record = {"kind": "epoch", "epoch": epoch, "loss": 5.0 * 0.8**epoch}
        for name, value in columns.items():
            record[name] = value[epoch] if isinstance(value, list) else value
        recall = record.pop("recall", None)
        if recall is not None:
            record["validation"] = {"clip/a->b/R@10": recall, "clip/b->a/R@10": recall}
            record["score"] = recall
        yield record


HEALTHY = {
    "gallery": 3000.0,
    "recall": [0.4, 1.0, 3.0, 8.0, 14.0, 19.0, 23.0, 27.0],
    "mean_cosine": [0.98, 0.95, 0.8, 0.7, 0.6, 0.58, 0.58, 0.58],
    "intra_share": [0.99, 0.98, 0.7, 0.4, 0.2, 0.18, 0.15, 0.12],
}


def warnings_of(warmup=2, **changes):
    health = Health(warmup)
    found = [health.observe(record) for record in epochs(**{**HEALTHY, **changes})]
    return [warning for warning in found if warning is not None]


def test_a_healthy_run_gives_no_warning():
    assert warnings_of() == []
    assert warnings_of(warmup=0, mean_cosine=0.5, intra_share=0.2, recall=30.0) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mean_cosine": 0.95, "recall": 1.0, "intra_share": 0.8}, ["collapsed", "0.95", "intra_mode=logit"]),
        ({"mean_cosine": 0.95, "recall": 1.0, "intra_share": 0.1}, ["collapsed", "optimiser.learning_rate"]),
        ({"intra_share": 0.97, "recall": 1.0}, ["97%", "own modality", "intra_mode=logit", "queue_size"]),
        ({"recall": 0.5}, ["at chance", "R@10 0.5", "random ranks give 0.33", "crossclr check"]),
        ({"recall": None, "loss": [5.0, 4.9, *[4.8] * 6]}, ["stands still", "4.8", "optimiser.learning_rate"]),
        ({"recall": None, "loss": [5.0, 4.0, 4.1, 4.3, 4.6, 5.0, 5.5, 6.0]}, ["rises", "optimiser.learning_rate"]),
        ({"recall": 5.0, "loss": [5.0, 4.9, *[4.8] * 6]}, ["stands still"]),
    ],
)
def test_each_sign_gives_one_warning_with_cause_and_option(changes, words):
    found = warnings_of(**changes)
    assert len(found) == 1
    assert found[0].startswith("This run does not learn: ")
    for word in words:
        assert word in found[0]


def test_the_warm_up_is_not_judged():
    health = Health(4)
    bad = list(epochs(mean_cosine=0.99, intra_share=1.0, recall=0.3, gallery=3000.0))
    assert [health.observe(record) is not None for record in bad] == [False] * 5 + [True] + [False] * 2


def test_a_loss_that_stands_still_while_retrieval_improves_is_no_problem():
    assert warnings_of(loss=4.8) == []


def test_retrieval_far_above_chance_overrules_everything_else():
    assert warnings_of(recall=40.0, mean_cosine=0.95, intra_share=0.95) == []


def test_a_loss_that_jumps_gives_one_warning_although_retrieval_works():
    jumps = [5.0, 4.0, 3.0, 2.0, 1.6, 6.5, 2.4, 8.0]
    (warning,) = warnings_of(loss=jumps, recall=40.0)
    assert "jumped from 1.6 to 6.5" in warning
    assert "training.gradient_clip" in warning
    assert warnings_of(warmup=6, loss=[*jumps[:6], 6.0, 5.0], recall=40.0) == []  # the jump lies in the warm-up
    assert warnings_of(loss=[0.2, 0.1, 0.05, 0.1, 0.3, 0.1, 0.3, 0.1], recall=40.0) == []  # small losses may double


def test_small_galleries_are_not_compared_with_chance():
    assert warnings_of(gallery=20.0, recall=50.0) == []


def test_a_resumed_run_warns_like_one_that_never_stopped():
    bad = list(epochs(recall=None, gallery=0, loss=4.8))
    whole, first = Health(2), Health(2)
    expected = [whole.observe(record) for record in bad]
    found = [first.observe(record) for record in bad[:4]]
    second = Health(**asdict(first))
    assert found + [second.observe(record) for record in bad[4:]] == expected
