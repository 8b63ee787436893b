#!/usr/bin/env python3
"""A worker for the service `example`, with nothing but the standard library. See docs/guides/worker-http.md."""
import base64, json, math, os, signal, socket, sys, time, urllib.request as web

URL = os.environ.get("RELAIS_URL", "http://127.0.0.1:8080") + "/v1/services/example/"
LOGIN = "Basic " + base64.b64encode("{RELAIS_CLIENT}:{RELAIS_SECRET}".format(**os.environ).encode()).decode()
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append("SIGTERM"))

def call(verb, head={"Authorization": LOGIN, "Content-Type": "application/json"}, **body):
    while True:
        try:
            return json.load(web.urlopen(web.Request(URL + verb, json.dumps(body).encode(), head), timeout=60))["data"]
        except OSError as error:  # No answer, 429, 5xx: the server will be back. Any other refusal is final.
            if getattr(error, "code", 503) not in (408, 429, 500, 502, 503, 504): raise
        time.sleep(2)

def work(me, sleep, mustSucceed):
    tell = lambda **data: call("messages", **me, data=data)
    for step in range(steps := math.ceil(sleep)):  # One a second, so that the lease never runs out between two.
        if stopping: return call("returns", tasks=[me])
        tell(messageType="progress", progress=100 * step / steps)
        if call("heartbeats", tasks=[me])["outcomes"][0]["outcome"] != "accepted": return
        time.sleep(sleep / steps)
    if mustSucceed: tell(messageType="success", response={"slept": sleep})
    else: tell(messageType="failure", errorMessage="mustSucceed is false")

while not stopping:
    for task in call("claims", wait="10s", hostName=socket.gethostname())["tasks"]:
        work({"taskId": task["taskId"], "attempt": task["attempt"]}, **task["data"]["body"])
        stopping += [arg for arg in sys.argv if arg == "--once"]
