#!/usr/bin/env python3
"""A collector of traces that prints them, for a first look: OTLP over HTTP in, one line for each span out.

    python3 collector.py 4318

A line is `trace parent span service name milliseconds`, apart by tabs. Whatever is posted elsewhere than to /v1/traces is
taken for a callback, and printed with the `traceparent` that it came with. Nothing but Python is needed; in earnest, use a
real collector.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def fields(data):
    """The fields of a protobuf message: number, and what it holds."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(data):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            yield number, data[at : at + size]
            at += size


def all_of(data, number):
    return [value for found, value in fields(data) if found == number]


def one_of(data, number, default=b""):
    return next(iter(all_of(data, number)), default)


def service_name(resource):
    for attribute in all_of(resource, 1):
        if one_of(attribute, 1) == b"service.name":
            return one_of(one_of(attribute, 2), 1).decode()
    return "?"


def spans(request):
    """Each span of an export request, as the line that is printed."""
    for group in all_of(request, 1):
        service = service_name(one_of(group, 1))
        for scope in all_of(group, 2):
            for span in all_of(scope, 2):
                begun, ended = (int.from_bytes(one_of(span, number), "little") for number in (7, 8))
                yield (
                    one_of(span, 1).hex(),
                    one_of(span, 4).hex() or "-",
                    one_of(span, 2).hex(),
                    service,
                    one_of(span, 5).decode(),
                    f"{(ended - begun) / 1e6:.1f}",
                )


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/v1/traces":
            lines = ["\t".join(line) for line in spans(body)]
        else:
            lines = [f"callback\t{self.headers.get('traceparent', '-')}\t{body.decode()}"]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
        print("\n".join(lines), flush=True)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 4318), Collector)
    print(f"collecting on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
