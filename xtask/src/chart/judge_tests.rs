//! The judge is judged: manifests that fit together pass, and each way of spoiling them is noticed.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{NAMESPACE, Rendering, judge::judge};

fn meta(name: &str) -> Value {
    json!({"name": name, "namespace": NAMESPACE})
}

fn pod(labels: &Value, grace: u64, container: Value) -> Value {
    let mut container = container;
    container["image"] = json!("registry.example.org:5000/relais:1.0");
    container["resources"] = json!({"requests": {"memory": "1Mi"}, "limits": {"memory": "2Mi"}});
    container["securityContext"] = json!({
        "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
    });
    json!({"metadata": {"labels": labels}, "spec": {
        "automountServiceAccountToken": false, "enableServiceLinks": false, "terminationGracePeriodSeconds": grace,
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }})
}

/// A server and two workers: a Deployment over HTTP, and a Job over RabbitMQ.
fn good() -> Rendering {
    let secret = |name: &str, key: &str| json!({"secretKeyRef": {"name": name, "key": key}});
    let server = json!({
        "command": ["/usr/local/bin/relais", "serve"],
        "env": [
            {"name": "RELAIS_SERVER_SHUTDOWN_GRACE", "value": "30s"},
            {"name": "RELAIS_DATABASE_URL", "valueFrom": secret("pg-app", "uri")},
            {"name": "RELAIS_DECLARATIONS_FILE", "value": "/etc/relais/declarations/services.yaml"},
            {"name": "SHOP_SECRET", "valueFrom": secret("shop", "clientSecret")},
        ],
        "ports": [{"name": "http", "containerPort": 8080}],
        "livenessProbe": {"httpGet": {"path": "/healthz"}},
        "readinessProbe": {"httpGet": {"path": "/readyz"}},
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
    });
    let worker = json!({
        "command": ["/usr/local/bin/relais", "worker"],
        "args": ["--service=mail", "--grace=100s", "--kill-after=10s", "--", "/bin/send", "--once"],
        "env": [
            {"name": "RELAIS_URL", "value": format!("http://relais.{NAMESPACE}.svc:8080")},
            {"name": "RELAIS_CLIENT", "valueFrom": secret("shop", "clientId")},
            {"name": "RELAIS_SECRET", "valueFrom": secret("shop", "clientSecret")},
        ],
    });
    let job = json!({
        "env": [
            {"name": "RELAIS_URL", "value": format!("http://relais.{NAMESPACE}.svc:8080")},
            {"name": "RELAIS_BROKER_URL", "valueFrom": secret("mq-default-user", "connection_string")},
            {"name": "RELAIS_SERVICE", "value": "resize"},
            {"name": "RELAIS_QUEUE", "value": "images"},
            {"name": "RELAIS_GRACE", "value": "1780s"},
            {"name": "RELAIS_TIMEOUT", "value": "1800s"},
            {"name": "RELAIS_ONCE", "value": "true"},
            {"name": "RELAIS_IDLE", "value": "60s"},
        ],
    });
    let (api, mail, images) = (
        json!({"app": "api"}),
        json!({"app": "mail", "relais/tier": "worker"}),
        json!({"app": "images", "relais/tier": "worker"}),
    );
    let mut job_pod = pod(&images, 1800, job);
    job_pod["spec"]["restartPolicy"] = json!("Never");
    let documents = vec![
        json!({"kind": "Deployment", "metadata": meta("relais"), "spec": {
            "replicas": 2, "selector": {"matchLabels": api}, "template": pod(&api, 45, server)}}),
        json!({"kind": "Service", "metadata": meta("relais"), "spec": {
            "selector": api, "ports": [{"name": "http", "port": 8080, "targetPort": "http"}]}}),
        json!({"kind": "Deployment", "metadata": meta("mail"), "spec": {
            "selector": {"matchLabels": {"app": "mail"}}, "template": pod(&mail, 120, worker)}}),
        json!({"kind": "ScaledObject", "metadata": meta("mail"), "spec": {
            "scaleTargetRef": {"name": "mail"}, "triggers": [{
                "type": "metrics-api", "authenticationRef": {"name": "mail"}, "metadata": {
                    "url": format!("http://relais.{NAMESPACE}.svc:8080/v1/services/mail/backlog"),
                    "valueLocation": "data.backlog", "targetValue": "5", "authMode": "basic"}}]}}),
        json!({"kind": "TriggerAuthentication", "metadata": meta("mail"), "spec": {"secretTargetRef": [
            {"parameter": "username", "name": "shop", "key": "clientId"},
            {"parameter": "password", "name": "shop", "key": "clientSecret"}]}}),
        json!({"kind": "ScaledJob", "metadata": meta("images"), "spec": {
            "jobTargetRef": {"template": job_pod}, "rollout": {"strategy": "gradual"},
            "scalingStrategy": {"strategy": "default"}, "triggers": [{
                "type": "rabbitmq", "authenticationRef": {"name": "images"}, "metadata": {
                    "protocol": "http", "host": "http://mq:15672/", "queueName": "images-in", "value": "1"}}]}}),
        json!({"kind": "TriggerAuthentication", "metadata": meta("images"), "spec": {"secretTargetRef": [
            {"parameter": "username", "name": "mq-default-user", "key": "username"},
            {"parameter": "password", "name": "mq-default-user", "key": "password"}]}}),
        json!({"kind": "RabbitmqCluster", "metadata": meta("mq"), "spec": {
            "rabbitmq": {"additionalConfig": "consumer_timeout = 1800000\n"}}}),
        json!({"kind": "Cluster", "metadata": meta("pg"), "spec": {}}),
        json!({"kind": "PodDisruptionBudget", "metadata": meta("mail"), "spec": {
            "selector": {"matchLabels": {"app": "mail"}}}}),
    ];
    let declared = json!({
        "services": [{"serviceName": "mail", "transport": "builtin"}, {"serviceName": "resize", "queueName": "images"}],
        "clients": [{"clientId": "shop", "clientSecret": {"env": "SHOP_SECRET"}}],
        "authorizations": [{"clientId": "shop", "serviceName": "mail", "roles": ["work"]}],
    });
    Rendering {
        documents,
        values: json!({"declarations": {"key": "services.yaml"}, "broker": {"enabled": true},
            "workers": [{"client": {"existingSecret": "shop", "idKey": "clientId", "secretKey": "clientSecret"}}]}),
        parsed: BTreeMap::from([("relais-declarations/services.yaml".to_owned(), declared)]),
    }
}

#[test]
fn a_consistent_chart_passes() {
    assert_eq!(judge(&good()), [""; 0]);
}

#[test]
fn every_inconsistency_of_a_chart_is_noticed() {
    const SERVER: &str = "/0/spec/template/spec/containers/0";
    const WORKER: &str = "/2/spec/template/spec/containers/0";
    const JOB: &str = "/5/spec/jobTargetRef/template/spec/containers/0";
    let ways = [
        ("/0/spec/template/spec/terminationGracePeriodSeconds".to_owned(), json!(35), "may take 5 + 30"),
        ("/0/spec/template/spec/enableServiceLinks".to_owned(), json!(true), "taken for settings"),
        ("/0/spec/template/spec/securityContext/runAsNonRoot".to_owned(), json!(false), "runs as root"),
        (format!("{SERVER}/image"), json!("registry.example.org:5000/relais"), "without a version"),
        (format!("{SERVER}/image"), json!("relais:latest"), "without a version"),
        (format!("{SERVER}/securityContext/readOnlyRootFilesystem"), json!(false), "may write"),
        (format!("{SERVER}/env/1/valueFrom/secretKeyRef/name"), json!("nobody"), "nobody makes the Secret"),
        (format!("{SERVER}/env/1/valueFrom/secretKeyRef/key"), json!("url"), "nobody makes the Secret"),
        (format!("{SERVER}/env/3/name"), json!("OTHER"), "which is not set"),
        (format!("{SERVER}/readinessProbe/httpGet/path"), json!("/ready"), "does not ask /readyz"),
        (format!("{SERVER}/ports/0/name"), json!("web"), "that no pod has"),
        ("/0/spec/selector/matchLabels".to_owned(), json!({"app": "apple"}), "does not select its own pods"),
        ("/1/spec/selector".to_owned(), json!({"app": "apple"}), "selects no pod"),
        ("/1/spec/ports/0/port".to_owned(), json!(80), "leads nowhere"),
        ("/2/spec/template/spec/terminationGracePeriodSeconds".to_owned(), json!(110), "may take 110 s to stop"),
        ("/2/metadata/namespace".to_owned(), json!("default"), "namespace"),
        (format!("{WORKER}/args/1"), json!("--concurrency=1"), "is not told how long"),
        (format!("{WORKER}/args/0"), json!("--service=male"), "not declared"),
        (format!("{WORKER}/args/2"), json!("--once"), "--once says so"),
        (format!("{WORKER}/env/2/name"), json!("SECRET"), "is not told RELAIS_SECRET"),
        (format!("{WORKER}/command/0"), json!("/relais/relais"), "nobody put there"),
        ("/3/spec/scaleTargetRef/name".to_owned(), json!("male"), "scales nothing"),
        ("/3/spec/triggers/0/metadata/url".to_owned(), json!("http://relais/backlog"), "not the backlog of mail"),
        ("/3/spec/triggers/0/metadata/valueLocation".to_owned(), json!("data.queued"), "another number"),
        ("/3/spec/triggers/0/authenticationRef/name".to_owned(), json!("male"), "not there"),
        ("/4/spec/secretTargetRef/0/parameter".to_owned(), json!("user"), "without credentials"),
        ("/4/spec/secretTargetRef/0/name".to_owned(), json!("nobody"), "nobody makes the Secret"),
        ("/5/spec/triggers/0/metadata/queueName".to_owned(), json!("images"), "listens to images-in"),
        ("/5/spec/triggers/0/metadata/protocol".to_owned(), json!("amqp"), "strategy must be accurate"),
        ("/5/spec/triggers/0/metadata/value".to_owned(), json!("5"), "a Job takes one"),
        ("/5/spec/rollout".to_owned(), json!({}), "would kill Jobs"),
        ("/5/spec/jobTargetRef/template/spec/restartPolicy".to_owned(), json!("OnFailure"), "started again"),
        (format!("{JOB}/env/3/value"), json!("resize"), "the service's queue is images"),
        (format!("{JOB}/env/5/value"), json!("1801s"), "longer than RabbitMQ waits"),
        (format!("{JOB}/env/4/value"), json!("1800s"), "is killed after 1800 s"),
        (format!("{JOB}/env/1/name"), json!("OTHER"), "listens elsewhere"),
        (format!("{JOB}/env/7/name"), json!("OTHER"), "waits for ever for a task"),
        (format!("{WORKER}/args/0"), json!("--idle=60s"), "started again at once"),
        ("/9/spec/selector/matchLabels".to_owned(), json!({"app": "male"}), "selects no pod"),
        ("/9/kind".to_owned(), json!("Secret"), "secrets are made beside the chart"),
    ];
    for (place, value, said) in ways {
        let mut bad = good();
        let mut documents = Value::Array(std::mem::take(&mut bad.documents));
        *documents.pointer_mut(&place).unwrap_or_else(|| panic!("there is no {place}")) = value.clone();
        bad.documents = documents.as_array().cloned().unwrap_or_default();
        let found = judge(&bad).join("\n");
        assert!(found.contains(said), "{place} = {value}: {found}");
    }
}
