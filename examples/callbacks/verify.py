#!/usr/bin/env python3
"""Takes callbacks and checks their signatures, with nothing but the standard library. See docs/guides/callbacks.md.

    verify.py                            takes callbacks on 127.0.0.1:$PORT
    verify.py ID TIMESTAMP SIGNATURE     checks one: the values of its headers, and its body on stdin
"""
import base64, hashlib, hmac, http.server, json, os, re, sys, time, zlib

SECRET = os.environ["RELAIS_SIGNING_SECRET"]
MAX_BODY = 16 * 1024 * 1024
seen = set()  # Keep yours with what you do, in the same transaction.

def verify(secret, id, timestamp, signatures, body):
    """Whether this was sent by Relais within five minutes. The body is bytes: decompressed, and not parsed."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    if len(key) < 24: raise ValueError("this is not a signing secret")
    if not re.fullmatch("[0-9]{1,12}", timestamp) or abs(time.time() - int(timestamp)) > 300: return False
    tag = hmac.digest(key, f"{id}.{timestamp}.".encode() + body, hashlib.sha256)
    expected = b"v1," + base64.b64encode(tag)
    return any(hmac.compare_digest(expected, signature.encode()) for signature in signatures.split(" "))

class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(self.take())
        self.end_headers()

    def take(self):
        try:
            length = int(self.headers["content-length"])
            if not 0 <= length <= MAX_BODY: return 413
            body = self.rfile.read(length)
            if self.headers["content-encoding"] == "gzip": body = zlib.decompressobj(31).decompress(body, MAX_BODY)
        except (TypeError, ValueError, zlib.error):
            return 400
        id, timestamp, signatures = (self.headers["webhook-" + name] or "" for name in ("id", "timestamp", "signature"))
        if not verify(SECRET, id, timestamp, signatures, body): return 401
        if id not in seen: print("taken", id, json.loads(body)["status"], flush=True)
        seen.add(id)
        return 204

if sys.argv[1:]:
    genuine = verify(SECRET, *sys.argv[1:4], sys.stdin.buffer.read())
    print("accepted" if genuine else "refused")
    sys.exit(0 if genuine else 1)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8000"))), Receiver)
print("listening on", server.server_port, flush=True)
server.serve_forever()
