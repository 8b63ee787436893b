//! A worker's settings as its environment has them: what the Helm chart tells an image that is a worker by itself.
//!
//! Which variables there are, and what they mean, is here and nowhere else in this crate. One that is empty counts as
//! absent; one that can not be understood is an error, for a worker that runs with other settings than it was given is
//! worse than none.

use std::{str::FromStr, time::Duration};

use relais_protocol::HumanDuration;

use crate::{Worker, WorkerBuilder, WorkerError};

/// Where a server is that nobody named.
const LOCAL: &str = "http://127.0.0.1:8080";

/// The settings, with variables as `read` has them.
pub(crate) fn builder(read: impl Fn(&str) -> Option<String>) -> Result<WorkerBuilder, WorkerError> {
    let environment = Environment(read);
    let mut builder = environment.source()?;
    if let Some(concurrency) = environment.parsed("RELAIS_CONCURRENCY")? {
        builder = builder.concurrency(concurrency);
    }
    let grace = environment.duration("RELAIS_GRACE")?;
    builder = match (environment.parsed("RELAIS_INTERRUPTIBLE")?, grace) {
        // It has no grace. What it is given is the time to put something aside.
        (Some(true), Some(grace)) => builder.grace(Duration::ZERO).stop_limit(grace),
        (Some(true), None) => builder.grace(Duration::ZERO),
        (Some(false) | None, Some(grace)) => builder.grace(grace),
        (Some(false) | None, None) => builder,
    };
    if let Some(limit) = environment.duration("RELAIS_TIMEOUT")? {
        builder = builder.time_limit(limit);
    }
    if let Some(once) = environment.parsed("RELAIS_ONCE")? {
        builder = builder.once(once);
    }
    if let Some(idle) = environment.duration("RELAIS_IDLE")? {
        builder = builder.idle(idle);
    }
    Ok(builder)
}

struct Environment<R>(R);

impl<R: Fn(&str) -> Option<String>> Environment<R> {
    /// Where tasks come from: the broker, if one is named.
    fn source(&self) -> Result<WorkerBuilder, WorkerError> {
        if let Some(broker) = self.text("RELAIS_BROKER_URL") {
            return self.on_broker(broker);
        }
        let url = self.text("RELAIS_URL").unwrap_or_else(|| LOCAL.to_owned());
        let secret = self.needed("RELAIS_SECRET")?;
        // What came from a file ends with a line end, a secret does not.
        let secret = secret.trim_end_matches(['\n', '\r']);
        Ok(Worker::builder(url, self.needed("RELAIS_CLIENT")?, secret, self.needed("RELAIS_SERVICE")?))
    }

    #[cfg(feature = "rabbitmq")]
    fn on_broker(&self, url: String) -> Result<WorkerBuilder, WorkerError> {
        let queue = match self.text("RELAIS_QUEUE") {
            Some(queue) => queue,
            None => self.needed("RELAIS_SERVICE")?,
        };
        let builder = Worker::rabbitmq(url, queue);
        Ok(match self.text("RELAIS_BROKER_ROOT_CERTIFICATES") {
            Some(file) => builder.root_certificates(file),
            None => builder,
        })
    }

    #[cfg(not(feature = "rabbitmq"))]
    fn on_broker(&self, _: String) -> Result<WorkerBuilder, WorkerError> {
        Err(wrong("RELAIS_BROKER_URL", "this worker was built without RabbitMQ"))
    }

    fn text(&self, variable: &str) -> Option<String> {
        (self.0)(variable).filter(|value| !value.is_empty())
    }

    fn needed(&self, variable: &'static str) -> Result<String, WorkerError> {
        self.text(variable).ok_or_else(|| wrong(variable, "it is missing"))
    }

    fn parsed<T: FromStr<Err: std::fmt::Display>>(&self, variable: &'static str) -> Result<Option<T>, WorkerError> {
        let parsed = self.text(variable).map(|value| value.trim().parse::<T>()).transpose();
        parsed.map_err(|error| wrong(variable, &error.to_string()))
    }

    fn duration(&self, variable: &'static str) -> Result<Option<Duration>, WorkerError> {
        Ok(self.parsed::<HumanDuration>(variable)?.map(|duration| duration.0))
    }
}

fn wrong(variable: &'static str, why: &str) -> WorkerError {
    WorkerError::Environment { variable, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::BTreeSet};

    use super::*;

    /// As the chart sets them.
    const OVER_HTTP: [(&str, &str); 9] = [
        ("RELAIS_URL", "http://relais.relais.svc:8080"),
        ("RELAIS_CLIENT", "resizer"),
        ("RELAIS_SECRET", "hush\n"),
        ("RELAIS_SERVICE", "resize"),
        ("RELAIS_CONCURRENCY", "4"),
        ("RELAIS_GRACE", "100s"),
        ("RELAIS_TIMEOUT", "600s"),
        ("RELAIS_ONCE", "false"),
        ("RELAIS_INTERRUPTIBLE", "false"),
    ];

    /// With these instead, and after them what else there is.
    fn with(others: &[(&str, &str)]) -> Result<WorkerBuilder, WorkerError> {
        let all = others.iter().chain(&OVER_HTTP);
        builder(|name| all.clone().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    fn built(others: &[(&str, &str)]) -> Worker {
        with(others).unwrap().build().unwrap()
    }

    #[test]
    fn every_variable_of_the_chart_is_read() {
        let worker = built(&[]);
        let shown = format!("{:?}", worker.transport);
        assert!(shown.contains("http://relais.relais.svc:8080/v1/services/resize as resizer"), "{shown}");
        assert_eq!((worker.concurrency, worker.once, worker.idle), (4, false, None));
        assert_eq!(worker.grace, Duration::from_secs(100));
        assert_eq!(worker.time_limit, Some(Duration::from_secs(600)));
        let job = built(&[("RELAIS_CONCURRENCY", "1"), ("RELAIS_ONCE", "true"), ("RELAIS_IDLE", "60s")]);
        assert_eq!((job.concurrency, job.once, job.idle), (1, true, Some(Duration::from_secs(60))));
    }

    #[test]
    fn an_interruptible_worker_has_its_grace_period_to_stop() {
        let worker = built(&[("RELAIS_INTERRUPTIBLE", "true")]);
        assert_eq!((worker.grace, worker.stop_limit), (Duration::ZERO, Duration::from_secs(100)));
    }

    #[cfg(feature = "rabbitmq")]
    #[test]
    fn a_broker_that_is_named_is_where_tasks_come_from() {
        let broker = ("RELAIS_BROKER_URL", "amqp://relais:hush@rabbitmq/tasks");
        let shown = format!("{:?}", built(&[broker, ("RELAIS_QUEUE", "images")]).transport);
        assert!(shown.contains("images-in") && !shown.contains("hush"), "{shown}");
        let shown = format!("{:?}", built(&[broker]).transport);
        assert!(shown.contains("resize-in"), "{shown}");
    }

    #[test]
    fn later_settings_override_the_environment() {
        let worker = with(&[]).unwrap().concurrency(9).grace(Duration::from_secs(1)).build().unwrap();
        assert_eq!((worker.concurrency, worker.grace), (9, Duration::from_secs(1)));
    }

    #[test]
    fn invalid_variables_are_reported_and_never_guessed() {
        for (variable, value) in [
            ("RELAIS_SERVICE", ""),
            ("RELAIS_SECRET", ""),
            ("RELAIS_CONCURRENCY", "many"),
            ("RELAIS_GRACE", "100"),
            ("RELAIS_TIMEOUT", "soon"),
            ("RELAIS_ONCE", "perhaps"),
            ("RELAIS_IDLE", "-1s"),
        ] {
            let error = with(&[(variable, value)]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{variable} of the environment: ")), "{error}");
        }
    }

    /// The chart is another engineer's: a variable that is added there is to be read here.
    #[test]
    fn the_chart_sets_no_variable_that_nobody_reads() {
        let templates = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/helm/relais/templates/_worker.tpl");
        let template = std::fs::read_to_string(templates).unwrap();
        let set: BTreeSet<_> = template.lines().filter_map(|line| line.strip_prefix("- name: RELAIS_")).collect();
        assert!(set.contains("GRACE"), "{set:?}");
        let asked = RefCell::new(BTreeSet::new());
        for broker in [None, Some("amqp://rabbitmq".to_owned())] {
            let read = |name: &str| {
                asked.borrow_mut().insert(name.to_owned());
                match name {
                    "RELAIS_BROKER_URL" => broker.clone(),
                    _ => OVER_HTTP.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()),
                }
            };
            let _ = builder(read).unwrap();
        }
        for name in set {
            assert!(asked.borrow().contains(&format!("RELAIS_{name}")), "nobody reads RELAIS_{name}");
        }
    }
}
