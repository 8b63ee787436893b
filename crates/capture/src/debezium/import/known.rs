//! Why a setting of Debezium has no place in a declaration.

/// What to do about settings, by name. A star at the end stands for anything.
const KNOWN: &[(&str, &str)] = &[
    // Connect and the engine around the connector.
    ("tasks.max", "is not needed: one process reads a slot, the others stand by"),
    ("key.converter*", "is not needed: keys are JSON, with schemas if `envelope.schemas` says so"),
    ("header.converter*", "is not needed: headers are text"),
    ("converter.*", "is not carried over: values are JSON"),
    ("format.*", "is not carried over: values are JSON"),
    ("offset.*", "is not needed: the position is kept in the database, with the slot"),
    ("transforms", "is dealt with transform by transform"),
    ("predicates*", "is not carried over: Relais has no predicates"),
    ("errors.*", "is not needed: what a sink refuses is retried; see the guide for the limits"),
    ("topic.creation.*", "is not carried over: create topics beforehand, or let the brokers do it"),
    ("producer.override.*", "is not carried over: give such settings to the sink"),
    ("sink.kafka.*", "is not carried over: give such settings to the sink"),
    ("sink.*", "is not carried over: choose one of Relais' sinks"),
    ("exactly.once.support", "is not carried over: delivery is at least once, and records keep their order per key"),
    ("transaction.boundary*", "is not carried over: delivery is at least once"),
    ("config.action.reload", "is not needed: the declaration is reloaded when it changes"),
    // Speed and buffers.
    ("poll.interval.ms", "is not needed: changes are read as they come"),
    ("max.batch.size", "is not needed: batches are bounded in bytes"),
    ("max.queue.size*", "is not needed: the buffer is bounded in bytes"),
    ("status.update.interval.ms", "is not needed: Relais sends its status by itself"),
    ("snapshot.fetch.size", "is not needed: rows are streamed"),
    ("query.fetch.size", "is not needed: rows are streamed"),
    ("snapshot.max.threads*", "is not carried over: one connection reads the snapshot"),
    ("legacy.snapshot.max.threads", "is not carried over: one connection reads the snapshot"),
    ("retriable.restart.connector.wait.ms", "is not needed: pauses grow from one try to the next"),
    ("executor.shutdown.timeout.ms", "is not needed"),
    ("memory.management.*", "is not needed"),
    ("statistics.metrics.enabled", "is not needed: metrics are always there"),
    // Heartbeats.
    (
        "heartbeat.action.query",
        "is not needed: Relais confirms the server's keep-alives while the tables are quiet. Drop its table if nothing else \
         uses it",
    ),
    ("heartbeat.*", "is not needed: Relais confirms the server's keep-alives while the tables are quiet"),
    // Slot, publication, connection.
    ("publication.autocreate.mode", "is not needed: an outbox makes a publication of its own, with inserts only"),
    ("slot.drop.on.stop", "is not carried over: a slot is kept, or changes would be lost"),
    ("slot.drop_on_stop", "is not carried over: a slot is kept, or changes would be lost"),
    ("slot.failover", "is not needed: slots fail over where the server can do that (PostgreSQL 17)"),
    ("slot.stream.params", "is not carried over"),
    ("slot.max.retries", "is not needed: a slot in use is waited for"),
    ("slot.retry.delay.ms", "is not needed: a slot in use is waited for"),
    ("replica.identity.autoset.values", "is not carried over: set it with ALTER TABLE … REPLICA IDENTITY"),
    ("publish.via.partition.root", "is not carried over: see how the publication treats partitions"),
    ("database.ssl*", "belongs into the database URL or the system's trust store"),
    ("database.initial.statements", "is not carried over: use ALTER ROLE … SET"),
    ("database.tcpKeepAlive", "is not needed: it is always on"),
    ("database.query.timeout.ms", "is not carried over: use ALTER ROLE … SET statement_timeout"),
    ("connection.validation.timeout.ms", "is not needed"),
    ("flush.lsn.source", "is not needed: the slot advances when the sink has confirmed"),
    ("lsn.flush.*", "is not needed: the slot advances when the sink has confirmed"),
    ("xmin.fetch.interval.ms", "is not carried over: `source.xmin` is always null"),
    // Tables, columns, rows.
    ("table.ignore.builtin", "is not needed: only the declared tables are captured"),
    ("schema.exclude.list", "is not needed: only the declared tables are captured"),
    ("table.exclude.list", "is not needed: only the declared tables are captured"),
    ("schema.whitelist", "is not carried over: name the tables"),
    ("schema.blacklist", "is not needed: only the declared tables are captured"),
    ("table.blacklist", "is not needed: only the declared tables are captured"),
    ("database.whitelist", "is not needed: the database URL names one"),
    ("column.truncate.to.*", "is not carried over: mask the column, or shorten it in the consumer"),
    ("column.propagate.source.type", "is not carried over: schemas do not say which type a column has in PostgreSQL"),
    ("datatype.propagate.source.type", "is not carried over: schemas do not say which type a column has in PostgreSQL"),
    ("include.schema.comments", "is not carried over"),
    ("include.unknown.datatypes", "is not carried over: columns of types that Debezium does not know are left out"),
    ("hstore.handling.mode", "is not carried over: an hstore is a string of JSON, Debezium's default"),
    ("money.fraction.digits", "is not carried over: money has two digits"),
    ("converters", "is not carried over: Relais has no converters of one's own"),
    ("post.processors*", "is not carried over"),
    ("sanitize.field.names", "is not carried over: fields are called like their columns"),
    ("schema.name.adjustment.mode", "is not carried over: names of schemas are not adjusted"),
    ("field.name.adjustment.mode", "is not carried over: fields are called like their columns"),
    ("schema.refresh.mode", "is not needed: the log says what columns a table has"),
    ("topic.naming.strategy", "is not carried over: `destination` is a template"),
    ("topic.delimiter", "is not carried over: `destination` is a template"),
    ("topic.*", "is not carried over: `destination` is a template"),
    ("provide.transaction.metadata", "is not carried over: there is no transaction topic, and `transaction` is null"),
    ("transaction.*", "is not carried over: there is no transaction topic, and `transaction` is null"),
    ("message.prefix.*", "is not carried over: logical messages are not published"),
    ("extended.headers.enabled", "is not carried over: headers `__debezium.context.*` are not written"),
    ("event.processing.failure.handling.mode", "is not carried over: a change that cannot be read stops the capture"),
    // Snapshots and signals.
    ("snapshot.include.collection.list", "is not carried over: a snapshot has all declared tables"),
    ("snapshot.select.statement.overrides*", "is not carried over: a snapshot has all rows"),
    ("snapshot.mode.*", "is not carried over"),
    ("snapshot.delay.ms", "is not carried over"),
    ("snapshot.*", "is not needed: the snapshot beside the stream takes no locks"),
    ("streaming.delay.ms", "is not carried over"),
    ("signal.*", "is not carried over: there is no signalling table. Drop it if nothing else uses it"),
    ("notification.*", "is not carried over: see the metrics and the status of the capture"),
    ("incremental.snapshot.*", "is not carried over: there are no signals to start one"),
    ("read.only", "is not needed: Relais writes nothing to captured tables"),
    // Around it.
    ("openlineage.*", "is not carried over"),
    ("guardrail.*", "is not needed: only the declared tables are captured"),
    ("custom.metric.tags", "is not carried over"),
    ("custom.sanitize.pattern", "is not needed"),
    ("internal.*", "is internal to Debezium"),
    ("sourceinfo.struct.maker", "is not carried over"),
    ("database.history*", "is not needed for PostgreSQL"),
    ("schema.history*", "is not needed for PostgreSQL"),
];

/// What to do about a setting.
pub fn why(name: &str) -> Option<&'static str> {
    KNOWN
        .iter()
        .find(|(known, _)| match known.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => *known == name,
        })
        .map(|(_, why)| *why)
}

/// The salt of a hash is part of a setting's name.
pub fn without_secret(name: &str) -> String {
    match name.split_once(".with.salt.") {
        Some((before, _)) => format!("{before}.with.salt.…"),
        None => name.to_owned(),
    }
}
