"""Celery as the benchmark `rabbitmq` uses it: an app, and whoever submits to it.

As a worker: `celery -A work worker`. As a producer: `python work.py submit N` or `python work.py pickup N`; both wait for a
line on stdin before they begin.
"""

import json
import os
import sys
import time

from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_BROKER"], backend=os.environ["BENCH_RESULTS"])
app.conf.update(
    task_acks_late=True,
    task_default_delivery_mode="persistent",
    worker_prefetch_multiplier=int(os.environ["BENCH_PREFETCH"]),
    # Whether it stores that a task was started, besides its result.
    task_track_started=os.environ["BENCH_STARTED"] == "yes",
    broker_connection_retry_on_startup=True,
    # Nobody looks at them, and they cost time.
    worker_enable_remote_control=False,
    worker_send_task_events=False,
)


# Named: the producer and the worker know this file by different names.
@app.task(name="nothing")
def nothing(body):
    return {"done": True}


@app.task(name="pick_up")
def pick_up(sent):
    return time.time() - sent


def submit(count):
    body = json.loads(os.environ["BENCH_BODY"])
    for _ in range(count):
        nothing.delay(body)


def pick_ups(count):
    results = []
    for number in range(count):
        # The worker is idle by then, in no step with anything else.
        time.sleep(0.03 + number * 7 % 13 / 1000)
        results.append(pick_up.delay(time.time()))
    print(json.dumps([result.get(interval=0.01, timeout=60) for result in results]))


if __name__ == "__main__":
    what, count = sys.argv[1], int(sys.argv[2])
    # The connection is there before the clock starts.
    app.connection_for_write().ensure_connection()
    if what == "pickup":
        nothing.delay({}).get(timeout=60)
    print("ready", flush=True)
    sys.stdin.readline()
    {"submit": submit, "pickup": pick_ups}[what](count)
    print("done", flush=True)
