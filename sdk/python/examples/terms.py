"""On what terms the service `resize` does a task: when, how urgently, how often, and only once."""

from datetime import timedelta

from relais import Client, RetryRule

with Client() as client:
    body = {"sizes": [[640, 480]]}
    later = client.submit(
        "resize",
        body,
        delay=0.5,  # Durations are seconds, or a timedelta. A date: scheduled_date=datetime(…).
        priority=7,  # From 0 to 9; 4 is usual.
        timeout=timedelta(minutes=5),  # For each attempt.
        expires_after=timedelta(hours=2),  # If no worker has begun it by then, it fails.
        retry=RetryRule(limit=5, base=10, factor=3, cap=timedelta(hours=1), jitter=0.2),  # Or "classic", or "none".
        unique_key="album 7",
        unique_for=timedelta(minutes=10),
    )
    again = client.submit("resize", body, unique_key="album 7")
    print(again.duplicate, again.task_id == later.task_id)
    print(client.wait("resize", later.task_id, timeout=30).result())

    # From any end, with all its retries anew; one that waits for its time is done now.
    print(client.retry("resize", later.task_id).task_id == later.task_id)
    print(client.wait("resize", later.task_id, timeout=30).result())
