//! The sets of values that the chart is rendered with: the examples, every option at least once, and what must be
//! refused.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

/// The smallest set that is accepted; others are added to it.
const POSTGRES: &str = "database: {existingSecret: relais-database}\n";

/// A worker for the matrix, without a closing brace.
const WORKER: &str = "service: resize, client: {existingSecret: resizer}, command: [/bin/resize]";

/// What the chart offers, as (name, values); `{W}` is [`WORKER`].
const ACCEPTED: [(&str, &str); 21] = [
    ("bare", ""),
    ("migrate-at-start", "database: {migrate: start}"),
    ("encrypted", "database: {encryption: {existingSecret: relais-encryption, key: all}}"),
    ("encrypted-by-a-job", "database: {migrate: job, encryption: {existingSecret: relais-encryption}}"),
    (
        "existing-clusters",
        "broker: {enabled: true, cluster: {name: bunny}}\ndatabase: {existingSecret: '', cluster: {name: pg}}",
    ),
    (
        "created-clusters",
        "broker: {enabled: true, consumerTimeoutSeconds: 7200, cluster: {create: true, name: bunny, replicas: 1, \
         storageClass: fast, image: 'rabbitmq:4.1'}}\ndatabase: {existingSecret: '', cluster: {create: true, name: pg, \
         instances: 1, storageClass: fast, imageName: 'postgresql:17.5', parameters: {}}}",
    ),
    ("sqlite", "database: {existingSecret: '', kind: sqlite, sqlite: {existingClaim: disk}}\nserver: {replicas: 1}"),
    (
        "settings",
        "server: {settings: {server: {max_body_bytes: 2097152}, callbacks: {retries: [1s, 1m], ports: ['443', '8443'], \
         allow_http: false}, log: {level: 'info,relais_engine=debug'}, purge: {finished: 7d, every: 1h}}}",
    ),
    (
        "everything-around",
        "nameOverride: tasks\nimagePullSecrets: [{name: registry}]\nimage: {digest: \
         'sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef', pullPolicy: Always}\n\
         serviceMonitor: {enabled: true}\nadmin: {existingSecret: relais-admin}\nserviceAccount: {name: relais, \
         annotations: {team: platform}}\nserver: {ingress: {enabled: true, host: relais.example.org}, priorityClassName: \
         high, nodeSelector: {disk: ssd}, tolerations: [{operator: Exists}], affinity: {nodeAffinity: {}}, podLabels: \
         {a: b}, podAnnotations: {a: b}, drainSeconds: 0, service: {type: NodePort, port: 80, annotations: {a: b}}}\n\
         networkPolicy: {egress: [{ports: [{port: 4318}]}]}",
    ),
    (
        "nothing-around",
        "serviceAccount: {create: false}\nnetworkPolicy: {enabled: false}\nserver: {podDisruptionBudget: {enabled: false}, topologySpreadConstraints: []}\nworkers: [{name: w, {W}, podDisruptionBudget: {enabled: false}, healthPort: 0}]",
    ),
    ("own-declarations", "declarations: {existingConfigMap: my-services, key: all.yaml, prune: true}"),
    ("http-worker", "workers: [{name: resize, {W}}]"),
    ("http-job", "workers: [{name: resize, {W}, kind: job, timeoutSeconds: 7200}]"),
    ("patient-job", "workers: [{name: resize, {W}, kind: job, idleSeconds: 0}]"),
    (
        "push-worker",
        "scaler: {enabled: true, tlsSecret: scaler-tls}\nworkers: [{name: resize, {W}, scale: {trigger: external-push, activation: 3}}]",
    ),
    (
        "push-job",
        "scaler: {enabled: true, port: 7443}\nworkers: [{name: resize, {W}, kind: job, scale: {trigger: external-push}}]",
    ),
    (
        "rabbitmq-by-amqp",
        "broker: {enabled: true, existingSecret: bunny}\nworkers: [{name: a, {W}, transport: rabbitmq, queueName: images, timeoutSeconds: 60, scale: {trigger: rabbitmq}}, {name: b, {W}, transport: rabbitmq, kind: job, timeoutSeconds: 1800, scale: {trigger: rabbitmq}}]\nserver: {roles: [api, dispatch, track, rescue], split: [{name: rest, roles: [purge, callbacks]}]}",
    ),
    (
        "rabbitmq-by-http",
        "broker: {enabled: true, existingSecret: bunny, managementKey: management}\nworkers: [{name: a, {W}, transport: rabbitmq, scale: {trigger: rabbitmq}}, {name: b, {W}, transport: rabbitmq, kind: job, scale: {trigger: rabbitmq}}]",
    ),
    (
        "rabbitmq-by-metrics-api",
        "broker: {enabled: true, cluster: {name: bunny}}\nworkers: [{name: a, {W}, transport: rabbitmq, scale: {trigger: metrics-api, fallbackReplicas: 2}}]",
    ),
    (
        "own-image",
        "workers: [{name: a, {W}, runner: false, image: {repository: me/it, tag: '3'}}, {name: b, {W}, runner: false, \
         kind: job, image: {repository: me/it, tag: '3', pullPolicy: Never}, env: [{name: MODE, value: fast}], envFrom: \
         [{configMapRef: {name: mine}}], volumes: [{name: v, emptyDir: {}}], volumeMounts: [{name: v, mountPath: /v}], \
         egress: [{}], podLabels: {x: why}, podAnnotations: {x: why}, nodeSelector: {x: why}, tolerations: [{operator: \
         Exists}], affinity: {nodeAffinity: {}}, priorityClassName: low, interruptible: true}]",
    ),
    (
        "two-of-one-service",
        "workerDefaults: {client: {existingSecret: resizer}, command: [/bin/x], graceSeconds: 33}\nworkers: [{name: small, service: resize}, {name: large, service: resize, kind: job, graceSeconds: 300, inject: true, image: {repository: me/it, tag: '3'}}]",
    ),
];

/// What can not be meant, as (values, a part of what is said about it).
const REFUSED: [(&str, &str); 28] = [
    ("database: {existingSecret: ''}", "the database is missing"),
    ("database: {cluster: {create: true}}", "both given"),
    ("database: {kind: sqlite}", "is for one process"),
    ("database: {kind: sqlite, migrate: job}\nserver: {replicas: 1}", "beside the server"),
    ("database: {existingSecret: '', migrate: job, cluster: {create: true}}", "use initContainer"),
    ("image: {tag: latest}", "latest"),
    ("server: {settings: {database: {url: 'postgres://u:p@h/d'}}}", "would put a secret into a ConfigMap"),
    ("server: {settings: {admin: {token: hush}}}", "would put a secret into a ConfigMap"),
    ("server: {settings: {database: {encryption_keys: [hush]}}}", "database.encryption.existingSecret"),
    ("server: {settings: {server: {listen: '0.0.0.0:1'}}}", "decided by another value"),
    ("server: {roles: [callbacks]}", "must have api"),
    ("server: {split: [{name: post, roles: [callbacks]}]}", "what is left"),
    ("server: {ingress: {enabled: true}}", "host is missing"),
    ("server: {replica: 3}", "replica"),
    ("broker: {enabled: true}", "the broker is missing"),
    ("declarations: {existingConfigMap: x, content: {services: []  , clients: [{clientId: c}]}}", "both given"),
    ("declarations: {content: {clients: [{clientId: c, clientSecret: open}]}}", "clientSecret"),
    ("workers: [{name: w, service: s, command: [x]}]", "client.existingSecret is missing"),
    ("workers: [{name: w, service: s, client: {existingSecret: c}}]", "command is missing"),
    ("workers: [{name: w, {W}, transport: rabbitmq}]", "set broker.enabled"),
    (
        "broker: {enabled: true, existingSecret: b}\nworkers: [{name: w, {W}, scale: {trigger: rabbitmq}}]",
        "never empties",
    ),
    ("workers: [{name: w, {W}, scale: {trigger: external-push}}]", "needs scaler.enabled"),
    ("workers: [{name: w, {W}, kind: job, concurrency: 4}]", "its concurrency is 1"),
    ("workers: [{name: w, {W}, scale: {min: 5, max: 2}}]", "scale.min is above"),
    ("workers: [{name: w, {W}}, {name: w, {W}}]", "is taken"),
    ("workers: [{name: Big_Name, {W}}]", "name"),
    ("workers: [{name: w, {W}, image: {repository: me/it, tag: '1'}}]", "has the program relais"),
    (
        "broker: {enabled: true, existingSecret: b}\nworkers: [{name: w, {W}, transport: rabbitmq, timeoutSeconds: 3600}]",
        "RabbitMQ takes a message back after 1800 s",
    ),
];

/// The examples and the matrix, as (name, file).
pub fn accepted(chart: &Path, space: &Path) -> Result<Vec<(String, PathBuf)>> {
    let examples = chart.join("examples");
    let mut cases = Vec::new();
    for entry in fs::read_dir(&examples).with_context(|| format!("cannot read {}", examples.display()))? {
        let path = entry?.path();
        cases.push((format!("example-{}", path.file_stem().unwrap_or_default().display()), path));
    }
    ensure!(cases.len() >= 3, "{} has too few examples", examples.display());
    cases.sort();
    for (name, values) in ACCEPTED {
        cases.push((name.to_owned(), write(space, name, values)?));
    }
    Ok(cases)
}

/// What must be refused, as (name, file, what is said).
pub fn refused(space: &Path) -> Result<Vec<(String, PathBuf, &'static str)>> {
    let case = |(index, (values, said)): (usize, &(&str, &'static str))| {
        Ok((format!("{values:?}"), write(space, &format!("refused-{index}"), values)?, *said))
    };
    REFUSED.iter().enumerate().map(case).collect()
}

fn write(space: &Path, name: &str, values: &str) -> Result<PathBuf> {
    let path = space.join(format!("{name}.yaml"));
    let values = values.replace("{W}", WORKER);
    // There is always a database: one of its own where the case speaks of it, an existing one otherwise.
    let own = values.lines().find(|line| line.starts_with("database: {"));
    let values = match own {
        Some(line) if line.contains("existingSecret: ''") => values,
        Some(_) => values.replacen("database: {", "database: {existingSecret: relais-database, ", 1),
        None => format!("{POSTGRES}{values}"),
    };
    fs::write(&path, format!("{values}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
