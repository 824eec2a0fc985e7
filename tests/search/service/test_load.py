"""Many clients while the index is replaced: a short form of `python -m benchmarks.service`."""

from benchmarks import service


def test_no_error_and_no_wrong_answer_while_the_index_is_replaced():
    found = service.run(rows=300, dim=16, seconds=4.0, clients=4, rebuilds=2)
    assert found["searches"] > 4
    assert found["previews"] > 0
    assert (found["errors"], found["wrong_answers"]) == (0, 0)
