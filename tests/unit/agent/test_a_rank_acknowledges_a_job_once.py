"""The job table: a job ends when every rank that owes it has reported."""

from __future__ import annotations

from kvoffload_agent.server.jobs import JobTable


def table() -> JobTable:
    jobs = JobTable(ranks=2)
    jobs.add(7, direction="store", tokens=16, size=1024)
    return jobs


def test_a_job_ends_with_the_last_rank() -> None:
    jobs = table()
    assert jobs.acknowledge(7, rank=0, ok=True)
    assert jobs.take_finished(7) is None
    assert jobs.acknowledge(7, rank=1, ok=True)
    record = jobs.take_finished(7)
    assert record is not None
    assert not record.failed
    assert len(jobs) == 0


def test_a_second_report_of_a_rank_counts_for_nothing() -> None:
    jobs = table()
    assert jobs.acknowledge(7, rank=0, ok=True)
    assert not jobs.acknowledge(7, rank=0, ok=True)
    assert jobs.take_finished(7) is None


def test_reports_of_unknown_jobs_and_ranks_count_for_nothing() -> None:
    jobs = table()
    assert not jobs.acknowledge(8, rank=0, ok=True)
    assert not jobs.acknowledge(7, rank=2, ok=True)


def test_one_failed_rank_fails_the_job() -> None:
    jobs = table()
    jobs.acknowledge(7, rank=1, ok=False)
    jobs.acknowledge(7, rank=0, ok=True)
    record = jobs.take_finished(7)
    assert record is not None
    assert record.failed


def test_what_a_rank_owes_is_listed() -> None:
    jobs = table()
    jobs.add(9, direction="load", tokens=1, size=1)
    jobs.acknowledge(7, rank=1, ok=True)
    assert jobs.owed_by(1) == [9]
    assert jobs.owed_by(0) == [7, 9]
