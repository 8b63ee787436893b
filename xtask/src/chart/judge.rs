//! What no schema can say: whether the manifests of one rendering fit together.
//!
//! Each rule looks at all manifests and says what is wrong, one sentence each. Rules about workers and what scales them
//! are in [`super::judge_workers`].

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Rendering, judge_workers};

/// Everything that is wrong.
pub fn judge(rendering: &Rendering) -> Vec<String> {
    let mut found = Vec::new();
    let documents = &rendering.documents;
    names(documents, &mut found);
    pods_are_restricted(documents, &mut found);
    selectors(documents, &mut found);
    references(rendering, &mut found);
    servers(rendering, &mut found);
    judge_workers::judge(rendering, &mut found);
    found
}

/// `Deployment shop-relais`.
pub fn title(document: &Value) -> String {
    format!("{} {}", text(&document["kind"]), text(&document["metadata"]["name"]))
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The manifests of a kind.
pub fn of_kind<'a>(documents: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    documents.iter().filter(move |document| document["kind"] == kind)
}

/// A manifest by its kind and name.
pub fn named<'a>(documents: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
    of_kind(documents, kind).find(|document| document["metadata"]["name"] == name)
}

/// The pod templates, with the manifest that each is of.
pub fn pods(documents: &[Value]) -> impl Iterator<Item = (&Value, &Value)> {
    documents.iter().filter_map(|document| {
        ["/spec/template", "/spec/jobTargetRef/template"]
            .iter()
            .find_map(|place| document.pointer(place))
            .map(|template| (document, template))
    })
}

/// The containers of a pod template, those that run first included.
pub fn containers(template: &Value) -> impl Iterator<Item = &Value> {
    list(&template["spec"]["initContainers"]).iter().chain(list(&template["spec"]["containers"]))
}

/// The containers that run `relais serve`, with the name of their Deployment.
pub fn server_containers(documents: &[Value]) -> Vec<(String, &Value)> {
    let serving = |container: &&Value| list(&container["command"]).get(1).is_some_and(|word| word == "serve");
    pods(documents)
        .flat_map(|(document, template)| {
            list(&template["spec"]["containers"]).iter().filter(serving).map(move |one| (title(document), one))
        })
        .collect()
}

/// A file of a ConfigMap.
pub fn config_map_file<'a>(documents: &'a [Value], file: &str) -> Option<&'a str> {
    of_kind(documents, "ConfigMap").find_map(|map| map["data"][file].as_str())
}

/// The value of a container's variable.
pub fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a Value> {
    list(&container["env"]).iter().find(|variable| variable["name"] == name)
}

fn labels(value: &Value) -> Option<&Map<String, Value>> {
    value.as_object().filter(|labels| !labels.is_empty())
}

/// Whether every label that is asked for is there. Nothing asked for is a mistake, not a match.
fn selects(selector: &Value, found: &Value) -> bool {
    labels(selector).is_some_and(|wanted| wanted.iter().all(|(name, value)| &found[name] == value))
}

/// Seconds of a duration that is written in seconds.
pub fn seconds(text: &str) -> Option<u64> {
    text.strip_suffix('s')?.parse().ok()
}

fn names(documents: &[Value], found: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for document in documents {
        let name = text(&document["metadata"]["name"]);
        if !seen.insert(title(document)) {
            found.push(format!("{} is there twice", title(document)));
        }
        if name.is_empty() || name.len() > 63 || name.ends_with('-') {
            found.push(format!("{} has a name that Kubernetes would refuse", title(document)));
        }
        if document["metadata"]["namespace"] != super::NAMESPACE {
            found.push(format!("{} is not in the release's namespace", title(document)));
        }
        if document["kind"] == "Secret" {
            found.push(format!("{} is a Secret: secrets are made beside the chart", title(document)));
        }
    }
}

/// What Kubernetes calls the restricted profile, resources, and images of which one can tell what they are.
fn pods_are_restricted(documents: &[Value], found: &mut Vec<String>) {
    for (document, template) in pods(documents) {
        let spec = &template["spec"];
        let mut wants = |fine: bool, what: &str| {
            if !fine {
                found.push(format!("{}: {what}", title(document)));
            }
        };
        wants(spec["securityContext"]["runAsNonRoot"] == true, "runs as root");
        wants(spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", "has no seccomp profile");
        wants(spec["automountServiceAccountToken"] == false, "has a token of the cluster that it does not need");
        wants(spec["enableServiceLinks"] == false, "gets variables RELAIS_… that would be taken for settings");
        for container in containers(template) {
            let context = &container["securityContext"];
            wants(context["readOnlyRootFilesystem"] == true, "may write to its image");
            wants(context["allowPrivilegeEscalation"] == false, "may become more than it is");
            wants(context["capabilities"]["drop"][0] == "ALL", "has capabilities");
            wants(container["resources"]["requests"]["memory"].is_string(), "does not say how much memory it needs");
            wants(container["resources"]["limits"]["memory"].is_string(), "has no limit of memory");
            let image = text(&container["image"]);
            let tag = image.rsplit('/').next().and_then(|last| last.split_once(':')).map(|(_, tag)| tag);
            wants(
                image.contains("@sha256:") || tag.is_some_and(|tag| tag != "latest"),
                "has an image without a version",
            );
            for mount in list(&container["volumeMounts"]) {
                let there = list(&spec["volumes"]).iter().any(|volume| volume["name"] == mount["name"]);
                wants(there, &format!("mounts a volume {} that is not there", mount["name"]));
            }
        }
    }
}

fn selectors(documents: &[Value], found: &mut Vec<String>) {
    let templates: Vec<(&Value, &Value)> = pods(documents).collect();
    let finds = |selector: &Value| templates.iter().any(|(_, pod)| selects(selector, &pod["metadata"]["labels"]));
    for document in documents {
        let spec = &document["spec"];
        let selector = match text(&document["kind"]) {
            "Deployment" => {
                if !selects(&spec["selector"]["matchLabels"], &spec["template"]["metadata"]["labels"]) {
                    found.push(format!("{} does not select its own pods", title(document)));
                }
                let others = templates.iter().filter(|(other, _)| *other != document);
                for (other, pod) in others {
                    if selects(&spec["selector"]["matchLabels"], &pod["metadata"]["labels"]) {
                        found.push(format!("{} selects pods of {}", title(document), title(other)));
                    }
                }
                continue;
            }
            "Service" => &spec["selector"],
            "PodDisruptionBudget" => &spec["selector"]["matchLabels"],
            "NetworkPolicy" => &spec["podSelector"]["matchLabels"],
            "ServiceMonitor" => {
                let wanted = &spec["selector"]["matchLabels"];
                let port = &spec["endpoints"][0]["port"];
                let fine = of_kind(documents, "Service").any(|service| {
                    selects(wanted, &service["metadata"]["labels"])
                        && list(&service["spec"]["ports"]).iter().any(|there| there["name"] == *port)
                });
                if !fine {
                    found.push(format!("{} finds no Service with the port {port}", title(document)));
                }
                continue;
            }
            _ => continue,
        };
        if !finds(selector) {
            found.push(format!("{} selects no pod", title(document)));
        }
        for port in list(&spec["ports"]) {
            let pod = templates.iter().find(|(_, pod)| selects(selector, &pod["metadata"]["labels"]));
            let there = pod.is_some_and(|(_, pod)| {
                containers(pod).flat_map(|one| list(&one["ports"])).any(|open| open["name"] == port["targetPort"])
            });
            if document["kind"] == "Service" && !there {
                found.push(format!("{} leads to a port {} that no pod has", title(document), port["targetPort"]));
            }
        }
    }
    // Where there are policies, none of our pods may be left out; what runs before the release is there before them.
    if of_kind(documents, "NetworkPolicy").next().is_some() {
        for (document, pod) in &templates {
            let kept = of_kind(documents, "NetworkPolicy")
                .any(|policy| selects(&policy["spec"]["podSelector"]["matchLabels"], &pod["metadata"]["labels"]));
            if !kept && document["kind"] != "Job" {
                found.push(format!("{} has no network policy", title(document)));
            }
        }
    }
}

/// Whether the values name this: then whoever wrote them answers for it.
fn in_values(values: &Value, name: &str) -> bool {
    match values {
        Value::String(text) => text == name,
        Value::Array(items) => items.iter().any(|item| in_values(item, name)),
        Value::Object(fields) => fields.values().any(|field| in_values(field, name)),
        _ => false,
    }
}

/// Whether a Secret is one that an operator makes, or one that the values name; and has the key, where that is known.
pub fn secret_exists(rendering: &Rendering, name: &str, key: &str) -> bool {
    let made = |suffix: &str, kind: &str, keys: &[&str]| {
        name.strip_suffix(suffix).is_some_and(|cluster| {
            let there = named(&rendering.documents, kind, cluster).is_some() || in_values(&rendering.values, cluster);
            there && keys.contains(&key)
        })
    };
    made("-app", "Cluster", &["uri", "username", "password", "host", "port", "dbname"])
        || made("-default-user", "RabbitmqCluster", &["connection_string", "username", "password", "host", "port"])
        || (in_values(&rendering.values, name)
            && (key.is_empty() || in_values(&rendering.values, key) || key == "ca.crt"))
}

fn references(rendering: &Rendering, found: &mut Vec<String>) {
    let documents = &rendering.documents;
    for (document, template) in pods(documents) {
        for container in containers(template) {
            for variable in list(&container["env"]) {
                let from = &variable["valueFrom"]["secretKeyRef"];
                if from.is_object() && !secret_exists(rendering, text(&from["name"]), text(&from["key"])) {
                    found.push(format!("{}: nobody makes the Secret {from}", title(document)));
                }
                // A secret in the open is one whose variable has a value.
                if text(&variable["name"]).contains("SECRET") && variable["value"].is_string() {
                    found.push(format!("{}: {} is in the open", title(document), variable["name"]));
                }
            }
        }
        for volume in list(&template["spec"]["volumes"]) {
            let (map, claim) = (&volume["configMap"]["name"], &volume["persistentVolumeClaim"]["claimName"]);
            for (kind, name) in [("ConfigMap", map), ("PersistentVolumeClaim", claim)] {
                let Some(name) = name.as_str() else { continue };
                if named(documents, kind, name).is_none() && !in_values(&rendering.values, name) {
                    found.push(format!("{}: there is no {kind} {name}", title(document)));
                }
            }
            if let Some(name) = volume["secret"]["secretName"].as_str()
                && !secret_exists(rendering, name, "")
            {
                found.push(format!("{}: nobody makes the Secret {name}", title(document)));
            }
        }
        let account = text(&template["spec"]["serviceAccountName"]);
        if !["", "default"].contains(&account) && named(documents, "ServiceAccount", account).is_none() {
            found.push(format!("{}: there is no ServiceAccount {account}", title(document)));
        }
    }
}

fn servers(rendering: &Rendering, found: &mut Vec<String>) {
    let documents = &rendering.documents;
    for (document, template) in pods(documents) {
        for container in list(&template["spec"]["containers"]) {
            if !server_containers(documents).iter().any(|(_, server)| *server == container) {
                continue;
            }
            let value = |name| variable(container, name).map(|found| text(&found["value"])).unwrap_or_default();
            let pause = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap_or_default();
            let grace = seconds(value("RELAIS_SERVER_SHUTDOWN_GRACE")).unwrap_or(u64::MAX / 2);
            let allowed = template["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
            if pause + grace >= allowed {
                found.push(format!("{}: is killed after {allowed} s, and may take {pause} + {grace}", title(document)));
            }
            for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
                if container[probe]["httpGet"]["path"] != path {
                    found.push(format!("{}: its {probe} does not ask {path}", title(document)));
                }
            }
            let file = value("RELAIS_DECLARATIONS_FILE");
            if let Some(declared) = file.rsplit('/').next().and_then(|key| declarations(rendering, key)) {
                for client in list(&declared["clients"]) {
                    for secret in [&client["clientSecret"]["env"], &client["signingSecret"]["env"]] {
                        if secret.is_string() && variable(container, text(secret)).is_none() {
                            found
                                .push(format!("{}: the declarations name {secret}, which is not set", title(document)));
                        }
                    }
                }
            }
            let sqlite = value("RELAIS_DATABASE_URL").starts_with("sqlite:");
            if sqlite && (document["spec"]["replicas"] != 1 || document["spec"]["strategy"]["type"] != "Recreate") {
                found.push(format!("{}: two processes may open one SQLite file", title(document)));
            }
        }
    }
    let scaled = of_kind(documents, "HorizontalPodAutoscaler").chain(of_kind(documents, "ScaledObject"));
    for scaler in scaled {
        match named(documents, "Deployment", text(&scaler["spec"]["scaleTargetRef"]["name"])) {
            None => found.push(format!("{} scales nothing that is there", title(scaler))),
            Some(target) if target["spec"]["replicas"].is_number() => {
                found.push(format!("{} says how many replicas it has, against {}", title(target), title(scaler)));
            }
            Some(_) => {}
        }
    }
}

/// What is declared by a file of a ConfigMap of the chart.
pub fn declarations<'a>(rendering: &'a Rendering, key: &str) -> Option<&'a Value> {
    rendering.parsed.iter().find(|(name, _)| name.ends_with(&format!("-declarations/{key}"))).map(|(_, value)| value)
}
