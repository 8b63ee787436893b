//! `cargo xtask chart`: is what the Helm chart makes valid, and does it fit together?
//!
//! The chart is rendered with every example and with every option, without a cluster. Core kinds are held against
//! Kubernetes's own schemas, the others against `deploy/schemas`; what no schema can say (that grace periods agree,
//! that a selector finds its pods, that settings are ones the server knows) is judged in [`judge`]. Values that can not
//! be meant must be refused. Last, manifests are spoilt to see that the validators notice. Nothing is installed
//! anywhere.

mod cases;
mod files;
mod judge;
#[cfg(test)]
mod judge_tests;
mod judge_workers;
mod tools;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::cargo::{self, cargo, root, run as execute};
use tools::Tools;

/// The oldest Kubernetes of Chart.yaml, and the newest that the validator knows.
const KUBERNETES: [&str; 2] = ["1.30", "1.37"];

/// The release that is rendered.
const RELEASE: &str = "shop";
const NAMESPACE: &str = "production";

/// Builds the server, which knows what can be set, then judges.
pub fn run() -> Result<()> {
    execute(&mut cargo(["build", "-p", "relais-server", "--bin", "relais"]))?;
    run_built()
}

/// Judges, with the server that has been built.
pub fn run_built() -> Result<()> {
    let start = Instant::now();
    let target = cargo::target_directory()?;
    let tools = Tools::find(&target)?;
    let chart = root().join("deploy/helm/relais");
    let space = target.join("chart");
    if space.exists() {
        fs::remove_dir_all(&space).with_context(|| format!("cannot clear {}", space.display()))?;
    }
    fs::create_dir_all(space.join("manifests")).context("cannot make room for manifests")?;

    let mut found = Vec::new();
    let mut manifests = Vec::new();
    let cases = cases::accepted(&chart, &space)?;
    for (name, values) in &cases {
        tools.lint(&chart, values).with_context(|| format!("{name} does not pass helm lint"))?;
        let rendered = tools.render(&chart, values)?.map_err(|said| anyhow::anyhow!("{name} is refused: {said}"))?;
        let rendering = tools.parse(&rendered, &chart, values).with_context(|| format!("{name} renders no YAML"))?;
        found.extend(judge::judge(&rendering).into_iter().map(|what| format!("{name}: {what}")));
        found.extend(settings(&rendering, &space)?.into_iter().map(|what| format!("{name}: {what}")));
        for (index, document) in rendering.documents.iter().enumerate() {
            manifests.push(write(&space.join("manifests"), &format!("{name}-{index}"), document)?);
        }
    }
    ensure!(found.is_empty(), "{} finding(s)\n  {}", found.len(), found.join("\n  "));
    validate(&tools, &manifests)?;
    let spoilt = notices_what_is_spoilt(&tools, &manifests, &space)?;
    let refused = refusals(&tools, &chart, &space)?;
    files::check(&tools, &space)?;
    println!(
        "chart: {} manifests of {} sets of values are valid, {refused} sets are refused, {spoilt} spoilt manifests are \
         noticed; passed in {:.0} s",
        manifests.len(),
        cases.len(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// What came of one set of values.
pub struct Rendering {
    /// The manifests.
    pub documents: Vec<Value>,
    /// The values, the chart's defaults included.
    pub values: Value,
    /// What the files inside ConfigMaps say, by `<ConfigMap>/<key>`.
    pub parsed: BTreeMap<String, Value>,
}

/// A manifest in a file of its own, and its kind.
struct Manifest {
    path: PathBuf,
    kind: String,
    group: String,
}

fn write(directory: &Path, name: &str, document: &Value) -> Result<Manifest> {
    let kind = document["kind"].as_str().context("a manifest has no kind")?.to_owned();
    let group = document["apiVersion"].as_str().context("a manifest has no apiVersion")?.replace('/', "-");
    let path = directory.join(format!("{name}-{kind}.json"));
    fs::write(&path, serde_json::to_vec_pretty(document)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Manifest { path, kind, group })
}

/// The schema of a kind that is not Kubernetes's own.
fn schema(manifest: &Manifest) -> Option<PathBuf> {
    let own = ["v1", "apps-v1", "batch-v1", "policy-v1", "autoscaling-v2", "networking.k8s.io-v1"];
    (!own.contains(&manifest.group.as_str()))
        .then(|| root().join(format!("deploy/schemas/{}-{}.json", manifest.kind, manifest.group)))
}

/// Every manifest against the schema of its kind.
fn validate(tools: &Tools, manifests: &[Manifest]) -> Result<()> {
    let mut by_schema: BTreeMap<Option<PathBuf>, Vec<&Path>> = BTreeMap::new();
    for manifest in manifests {
        by_schema.entry(schema(manifest)).or_default().push(&manifest.path);
    }
    for (schema, paths) in by_schema {
        match schema {
            Some(schema) => tools.matches(&schema, &paths)?,
            None => {
                for version in KUBERNETES {
                    tools.kubernetes(version, &paths)?;
                }
            }
        }
    }
    Ok(())
}

/// Spoils one manifest of each kind, in its first container where it has one, and expects the validators to say so.
fn notices_what_is_spoilt(tools: &Tools, manifests: &[Manifest], space: &Path) -> Result<usize> {
    let directory = space.join("spoilt");
    fs::create_dir_all(&directory).context("cannot make room for spoilt manifests")?;
    let mut kinds: BTreeMap<&str, &Manifest> = BTreeMap::new();
    for manifest in manifests {
        kinds.entry(&manifest.kind).or_insert(manifest);
    }
    for (kind, manifest) in &kinds {
        let document: Value = serde_json::from_slice(&fs::read(&manifest.path)?)?;
        let mut unknown = document.clone();
        let place = ["/spec/template/spec/containers/0", "/spec/jobTargetRef/template/spec/containers/0", "/spec", ""];
        let place = place.iter().find(|place| unknown.pointer(place).is_some()).copied().unwrap_or_default();
        if let Some(fields) = unknown.pointer_mut(place).and_then(Value::as_object_mut) {
            fields.insert("comand".to_owned(), json!(["a slip of the finger"]));
        }
        let mut wrong = document;
        wrong["metadata"] = json!("not an object");
        for (how, spoilt) in [("unknown", unknown), ("wrong", wrong)] {
            let spoilt = write(&directory, &format!("{how}-{kind}"), &spoilt)?;
            if validate(&tools.quietly(), &[spoilt]).is_ok() {
                bail!("a {kind} with {how} content passes: the validation of this kind is worth nothing");
            }
        }
    }
    Ok(kinds.len() * 2)
}

/// Values that can not be meant, and what is said about them.
fn refusals(tools: &Tools, chart: &Path, space: &Path) -> Result<usize> {
    let refused = cases::refused(space)?;
    for (name, values, expected) in &refused {
        match tools.render(chart, values)? {
            Ok(_) => bail!("{name} should have been refused with {expected:?}"),
            Err(said) if said.contains(expected) => {}
            Err(said) => bail!("{name} should have been refused with {expected:?}, and was with:\n{said}"),
        }
    }
    Ok(refused.len())
}

/// Whether the server would start with the settings of its pods: the server itself is asked.
fn settings(rendering: &Rendering, space: &Path) -> Result<Vec<String>> {
    let relais = cargo::binary("debug", "relais")?;
    let mut found = Vec::new();
    for (pod, container) in judge::server_containers(&rendering.documents) {
        let file = space.join("relais.toml");
        let text = judge::config_map_file(&rendering.documents, "relais.toml").unwrap_or_default();
        fs::write(&file, text).context("cannot write the settings")?;
        let mut check = Command::new(&relais);
        check.args(["config", "check", "--config"]).arg(&file).env_clear().current_dir(space);
        for variable in container["env"].as_array().into_iter().flatten() {
            let name = variable["name"].as_str().unwrap_or_default();
            let value = match (name, variable["value"].as_str()) {
                ("RELAIS_CONFIG", _) => continue,
                (_, Some(value)) => value,
                ("RELAIS_BROKER_MANAGEMENT_URL", None) => "http://relais:secret@mq.production.svc:15672/",
                ("RELAIS_DATABASE_URL", None) => "postgresql://relais:secret@db-rw.production:5432/relais",
                ("RELAIS_BROKER_URL", None) => "amqp://relais:secret@mq.production.svc:5672/",
                ("RELAIS_DATABASE_ENCRYPTION_KEYS", None) => "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
                (_, None) => "0123456789abcdef0123456789abcdef",
            };
            check.env(name, value);
        }
        let output = check.output().context("cannot run relais")?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            found.push(format!("{pod}: the server does not like its settings: {}", said.trim()));
        }
    }
    Ok(found)
}
