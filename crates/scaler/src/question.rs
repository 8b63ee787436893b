//! The question of a trigger, read from its metadata.

use std::collections::HashMap;

use relais_core::QueueDepth;
use tonic::Status;

use crate::proto::ScaledObjectRef;

/// Tasks for each replica, unless the trigger says otherwise.
const DEFAULT_TARGET: f64 = 5.0;

/// Which tasks are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those that wait and those that a worker has.
    All,
    /// Those that wait.
    Pending,
}

/// What a trigger asks.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The service.
    pub service: String,
    /// Tasks for each replica.
    pub target: f64,
    /// So many tasks are not worth a first replica.
    pub activation: f64,
    /// Which tasks are counted.
    pub scope: Scope,
}

impl Question {
    /// Reads it. The error says which key is wrong, and of which object: that is all that a log of KEDA shows.
    pub fn read(object: &ScaledObjectRef) -> Result<Self, Status> {
        let of = format!("{}/{}", object.namespace, object.name);
        let metadata = &object.scaler_metadata;
        let service = metadata.get("service").map(|name| name.trim()).filter(|name| !name.is_empty());
        let service = service.ok_or_else(|| wrong(&of, "service", "is missing: the name of a service of Relais"))?;
        let scope = match metadata.get("scope").map(String::as_str) {
            None | Some("" | "all") => Scope::All,
            Some("pending") => Scope::Pending,
            Some(other) => return Err(wrong(&of, "scope", &format!("is `{other}`; expected all or pending"))),
        };
        let target = number(metadata, &of, "targetBacklog")?.unwrap_or(DEFAULT_TARGET);
        if target <= 0.0 {
            return Err(wrong(&of, "targetBacklog", "is not above 0"));
        }
        let activation = number(metadata, &of, "activationBacklog")?.unwrap_or_default();
        Ok(Self { service: service.to_owned(), target, activation, scope })
    }

    /// How many tasks there are for it.
    pub const fn count(&self, depth: &QueueDepth) -> u64 {
        match self.scope {
            Scope::All => depth.backlog(),
            Scope::Pending => depth.pending,
        }
    }

    /// Whether they are worth a first replica.
    pub fn is_active(&self, depth: &QueueDepth) -> bool {
        self.count(depth) as f64 > self.activation
    }

    /// The metric's name: letters, digits and dashes, which is all that Kubernetes takes.
    pub fn metric_name(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let name: String = self.service.chars().map(plain).collect();
        format!("relais-{name}")
    }
}

fn number(metadata: &HashMap<String, String>, of: &str, key: &str) -> Result<Option<f64>, Status> {
    let Some(text) = metadata.get(key).map(|text| text.trim()).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(Some(number)),
        _ => Err(wrong(of, key, &format!("is `{text}`; expected a number, like \"5\""))),
    }
}

fn wrong(of: &str, key: &str, what: &str) -> Status {
    Status::invalid_argument(format!("{of}: {key} {what}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use relais_core::ServiceKey;

    use super::*;

    fn read(metadata: &[(&str, &str)]) -> Result<Question, String> {
        let scaler_metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let object = ScaledObjectRef { name: "resizer".to_owned(), namespace: "shop".to_owned(), scaler_metadata };
        Question::read(&object).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn absent_trigger_metadata_has_defaults() {
        // KEDA passes all its metadata on, its own included.
        let question = read(&[("service", "resize"), ("scalerAddress", "relais:9090")]);
        let expected = Question { service: "resize".to_owned(), target: 5.0, activation: 0.0, scope: Scope::All };
        assert_eq!(question, Ok(expected));
        let all = [("service", " s "), ("targetBacklog", "2.5"), ("activationBacklog", "3"), ("scope", "pending")];
        let expected = Question { service: "s".to_owned(), target: 2.5, activation: 3.0, scope: Scope::Pending };
        assert_eq!(read(&all), Ok(expected));
    }

    #[test]
    fn invalid_trigger_metadata_is_named() {
        for (key, value, said) in [
            ("service", " ", "shop/resizer: service is missing"),
            ("scope", "some", "shop/resizer: scope is `some`"),
            ("targetBacklog", "0", "targetBacklog is not above 0"),
            ("targetBacklog", "many", "targetBacklog is `many`"),
            ("targetBacklog", "NaN", "targetBacklog is `NaN`"),
            ("targetBacklog", "inf", "targetBacklog is `inf`"),
            ("activationBacklog", "-1", "activationBacklog is `-1`"),
        ] {
            let mut metadata = vec![("service", "resize")];
            metadata.retain(|(name, _)| *name != key);
            metadata.push((key, value));
            assert!(read(&metadata).unwrap_err().contains(said), "{key}");
        }
    }

    #[test]
    fn running_tasks_count_unless_the_trigger_excludes_them() {
        let depth = QueueDepth {
            service: ServiceKey(1),
            pending: 0,
            in_progress: 2,
            oldest_pending: Some(Duration::from_secs(1)),
        };
        let all = read(&[("service", "s")]).unwrap();
        assert!(all.is_active(&depth) && all.count(&depth) == 2);
        let pending = Question { scope: Scope::Pending, ..all.clone() };
        assert!(!pending.is_active(&depth) && pending.count(&depth) == 0);
        let reluctant = Question { activation: 2.0, ..all };
        assert!(!reluctant.is_active(&depth), "as many as the threshold are not more");
    }

    #[test]
    fn a_metric_has_a_name_that_kubernetes_takes() {
        let question = |service| read(&[("service", service)]).unwrap().metric_name();
        assert_eq!(question("resize"), "relais-resize");
        assert_eq!(question("Größe_2.0"), "relais-gr--e-2-0");
    }
}
