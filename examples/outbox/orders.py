#!/usr/bin/env python3
"""An order service that publishes what it commits. See README.md beside it.

    curl localhost:8000/orders -d '{"item": "tea", "quantity": 2}'

The database is $ORDERS_DATABASE_URL: an SQLite file, or PostgreSQL if the package psycopg is installed.
"""
import contextlib, http.server, json, os, sqlite3, uuid

URL = os.environ.get("ORDERS_DATABASE_URL", "sqlite:shop.db")
TABLES = [
    "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, item text NOT NULL, quantity integer NOT NULL)",
    "CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, quantity integer NOT NULL)",
    "INSERT INTO stock (item, quantity) VALUES ('tea', 10) ON CONFLICT DO NOTHING",
]

class SoldOut(Exception):
    """There is not enough left."""

def connect():
    if URL.startswith("sqlite:"): return sqlite3.connect(URL.removeprefix("sqlite:"), timeout=30)
    import psycopg
    return psycopg.connect(URL)

def sql(statement):
    """A parameter is `?` to SQLite and `%s` to psycopg."""
    return statement if URL.startswith("sqlite:") else statement.replace("?", "%s")

def place(item, quantity):
    """Stores an order together with the event that tells of it: both, or neither."""
    order = str(uuid.uuid4())
    placed = json.dumps({"order": order, "item": item, "quantity": quantity})
    with contextlib.closing(connect()) as connection:  # Closing it without a commit rolls back.
        execute = lambda statement, *values: connection.execute(sql(statement), values)
        execute("INSERT INTO orders (id, item, quantity) VALUES (?, ?, ?)", order, item, quantity)
        execute("INSERT INTO outbox (aggregate_id, event_type, payload) VALUES (?, ?, ?)", order, "placed", placed)
        take = "UPDATE stock SET quantity = quantity - ? WHERE item = ? AND quantity >= ?"
        if execute(take, quantity, item, quantity).rowcount == 0: raise SoldOut
        connection.commit()
    return order

class Orders(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        try:
            order = json.loads(self.rfile.read(int(self.headers["content-length"])))
            item, quantity = str(order["item"]), int(order["quantity"])
            if quantity < 1: raise ValueError
            self.answer(201, {"order": place(item, quantity)})
        except SoldOut:
            self.answer(409, {"error": "sold out"})
        except (KeyError, TypeError, ValueError):
            self.answer(400, {"error": 'expected {"item": "tea", "quantity": 2}'})

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode() + b"\n")

with contextlib.closing(connect()) as connection:
    for statement in TABLES: connection.execute(statement)
    connection.commit()
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8000"))), Orders)
print("listening on", server.server_port, flush=True)
server.serve_forever()
