"""Charts are legible whatever they show."""

from maxbrod.serve.pages.charts import time_ticks


def test_labels_of_an_axis_differ_however_short_it_is() -> None:
    day = 86_400_000
    for span in (5_000, 100_000, 4 * 60_000, day, 9 * day, 4_000 * day):
        labels = [tick.label for tick in time_ticks(day, day + span)]
        assert len(set(labels)) == len(labels), span
