"""A consumer of the service `resize`: submits, follows, reads the result."""

from relais import Client, Refused, TaskFailed

with Client() as client:  # RELAIS_URL, RELAIS_CLIENT, RELAIS_SECRET
    submitted = client.submit("resize", {"sizes": [[640, 480], [1024, 768]]}, idempotency_key="order-7")
    for event in client.stream("resize", submitted.task_id):
        print(event.kind, event.task.status.value, event.task.progress)
    print(client.get("resize", submitted.task_id).result())

    # Or all in one.
    print(client.run("resize", {"sizes": [[100, 50]], "scale": 2}, timeout=30))

    try:
        client.run("resize", {"sizes": [], "scale": 0}, timeout=30)
    except TaskFailed as failed:
        print("failed:", failed)
    try:
        client.submit("no-such-service", {})
    except Refused as refused:
        print(refused.number, refused.description)
