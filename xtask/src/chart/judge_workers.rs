//! Whether workers and what scales them fit together, and fit the server: grace periods, queues, addresses,
//! credentials.

use serde_json::Value;

use super::{
    NAMESPACE, Rendering,
    judge::{containers, declarations, list, named, of_kind, pods, seconds, secret_exists, text, title, variable},
};

/// Everything that is wrong.
pub fn judge(rendering: &Rendering, found: &mut Vec<String>) {
    let documents = &rendering.documents;
    for (document, template) in pods(documents) {
        if template["metadata"]["labels"]["relais/tier"] != "worker" {
            continue;
        }
        let Some(container) = list(&template["spec"]["containers"]).first() else { continue };
        let worker = Worker { document, template, container };
        for what in worker.complaints(rendering) {
            found.push(format!("{}: {what}", title(document)));
        }
        let scaled = match document["kind"] == "ScaledJob" {
            true => Some(document),
            false => named(documents, "ScaledObject", text(&document["metadata"]["name"])),
        };
        match scaled {
            Some(scaled) => {
                for what in worker.trigger_complaints(rendering, scaled) {
                    found.push(format!("{}: {what}", title(scaled)));
                }
            }
            None => found.push(format!("{}: nothing scales it", title(document))),
        }
    }
    for authentication in of_kind(documents, "TriggerAuthentication") {
        for target in list(&authentication["spec"]["secretTargetRef"]) {
            if !secret_exists(rendering, text(&target["name"]), text(&target["key"])) {
                found.push(format!("{}: nobody makes the Secret {target}", title(authentication)));
            }
        }
    }
}

struct Worker<'a> {
    document: &'a Value,
    template: &'a Value,
    container: &'a Value,
}

impl Worker<'_> {
    /// The flags of `relais worker`; what comes after them is the command's own.
    fn flags(&self) -> impl Iterator<Item = &str> {
        list(&self.container["args"]).iter().map(text).take_while(|word| *word != "--")
    }

    /// What the worker is told, by a flag of `relais worker` or by its variable.
    fn told(&self, flag: &str, name: &str) -> Option<&str> {
        let by_flag = self.flags().find_map(|word| word.strip_prefix("--")?.strip_prefix(flag)?.strip_prefix('='));
        by_flag.or_else(|| variable(self.container, name)?["value"].as_str())
    }

    /// How long it may take to stop: `relais worker` lets its commands go on for its grace, unless they are
    /// interruptible, and kills what is left.
    fn longest_stop(&self) -> Option<u64> {
        let of = |flag| self.told(flag, "").and_then(seconds);
        if self.flags().any(|word| word == "--interruptible") {
            return if of("grace").is_none() { of("kill-after") } else { None };
        }
        match of("grace") {
            Some(grace) => Some(grace + of("kill-after")?),
            None => variable(self.container, "RELAIS_GRACE")?["value"].as_str().and_then(seconds),
        }
    }

    fn once(&self) -> bool {
        self.flags().any(|word| word == "--once")
            || variable(self.container, "RELAIS_ONCE").is_some_and(|one| one["value"] == "true")
    }

    fn service(&self) -> &str {
        self.told("service", "RELAIS_SERVICE").unwrap_or_default()
    }

    fn complaints(&self, rendering: &Rendering) -> Vec<String> {
        let mut found = Vec::new();
        let allowed = self.template["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
        match self.longest_stop() {
            None => found.push("is not told how long it may go on".to_owned()),
            // Some seconds are left to say what became of the tasks.
            Some(longest) if longest + 5 > allowed => {
                found.push(format!("is killed after {allowed} s, and may take {longest} s to stop"));
            }
            Some(_) => {}
        }
        let job = self.document["kind"] == "ScaledJob";
        if job != self.once() {
            found.push("a Job takes one task, and a Deployment all there are: --once says so".to_owned());
        }
        let waits = self.told("idle", "RELAIS_IDLE").and_then(seconds);
        let patient = list(&rendering.values["workers"])
            .iter()
            .chain([&rendering.values["workerDefaults"]])
            .any(|entry| entry["idleSeconds"] == 0);
        if job && waits.is_none() && !patient {
            found.push("waits for ever for a task that somebody else may have taken".to_owned());
        }
        if !job && waits.is_some() {
            found.push("ends by itself when there is nothing to do, and is started again at once".to_owned());
        }
        if job && self.template["spec"]["restartPolicy"] != "Never" {
            found.push("a process that ended must not be started again in the same Job".to_owned());
        }
        let over_broker = variable(self.container, "RELAIS_BROKER_URL").is_some();
        for name in ["RELAIS_URL", "RELAIS_CLIENT", "RELAIS_SECRET"] {
            if variable(self.container, name).is_none() && (name == "RELAIS_URL" || !over_broker) {
                found.push(format!("is not told {name}"));
            }
        }
        if let Some(url) = variable(self.container, "RELAIS_URL")
            && !leads_to_service(rendering, text(&url["value"]).trim_start_matches("http://"))
        {
            found.push(format!("{} leads nowhere", url["value"]));
        }
        let program = text(&list(&self.container["command"]).first().cloned().unwrap_or_default()).to_owned();
        let injected = containers(self.template)
            .any(|one| list(&one["command"]).iter().any(|word| word == "/relais/relais") && one != self.container);
        if program == "/relais/relais" && !injected {
            found.push("runs a program that nobody put there".to_owned());
        }
        let key = text(&rendering.values["declarations"]["key"]);
        if let Some(declared) = declarations(rendering, key) {
            let service = list(&declared["services"]).iter().find(|one| one["serviceName"] == self.service());
            match service {
                None => found.push(format!("works on {}, which is not declared", self.service())),
                Some(service) => {
                    let broker = rendering.values["broker"]["enabled"] == true;
                    let usual = if broker { "rabbitmq" } else { "builtin" };
                    let transport = service["transport"].as_str().unwrap_or(usual);
                    if (transport == "rabbitmq") != over_broker {
                        found.push(format!(
                            "the tasks of {} come by {transport}, and it listens elsewhere",
                            self.service()
                        ));
                    }
                    let declared = service["queueName"].as_str().unwrap_or_else(|| self.service());
                    if let Some(queue) = self.told("queue", "RELAIS_QUEUE")
                        && queue != declared
                    {
                        found.push(format!("listens to {queue}, and the service's queue is {declared}"));
                    }
                }
            }
            let may = list(&declared["authorizations"]).iter().any(|one| {
                one["serviceName"] == self.service() && list(&one["roles"]).iter().any(|role| role == "work")
            });
            if !may && !over_broker {
                found.push(format!("nobody may work on {}", self.service()));
            }
        }
        for cluster in of_kind(&rendering.documents, "RabbitmqCluster") {
            let config = text(&cluster["spec"]["rabbitmq"]["additionalConfig"]);
            let limit = config.lines().find_map(|line| line.strip_prefix("consumer_timeout = ")?.parse::<u64>().ok());
            let longest = self.told("timeout", "RELAIS_TIMEOUT").and_then(seconds).unwrap_or_default();
            if over_broker && limit.is_none_or(|limit| longest * 1000 > limit) {
                found.push(format!("tasks may take {longest} s, longer than RabbitMQ waits for an acknowledgement"));
            }
        }
        found
    }

    fn trigger_complaints(&self, rendering: &Rendering, scaled: &Value) -> Vec<String> {
        let mut found = Vec::new();
        let trigger = &scaled["spec"]["triggers"][0];
        let metadata = &trigger["metadata"];
        let authentication =
            named(&rendering.documents, "TriggerAuthentication", text(&trigger["authenticationRef"]["name"]));
        if trigger["authenticationRef"].is_object() && authentication.is_none() {
            found.push("refers to a TriggerAuthentication that is not there".to_owned());
        }
        let given = |parameter: &str| {
            let targets = authentication.map_or(&[][..], |found| list(&found["spec"]["secretTargetRef"]));
            targets.iter().any(|target| target["parameter"] == parameter)
        };
        let mut counts_running = true;
        let target = match text(&trigger["type"]) {
            "metrics-api" => {
                let path = format!("/v1/services/{}/backlog", self.service());
                let fine = text(&metadata["url"])
                    .strip_prefix("http://")
                    .and_then(|rest| rest.strip_suffix(&path))
                    .is_some_and(|place| leads_to_service(rendering, place));
                if !fine {
                    found.push(format!("asks {}, which is not the backlog of {}", metadata["url"], self.service()));
                }
                if metadata["valueLocation"] != "data.backlog" {
                    found.push("looks at another number than the backlog".to_owned());
                }
                if metadata["authMode"] != "basic" || !given("username") || !given("password") {
                    found.push("asks without credentials".to_owned());
                }
                &metadata["targetValue"]
            }
            "rabbitmq" => {
                let queue = self.told("queue", "RELAIS_QUEUE").unwrap_or_default();
                if metadata["queueName"] != format!("{queue}-in") {
                    found.push(format!("counts {}, and the worker listens to {queue}-in", metadata["queueName"]));
                }
                let whole = given("host") || (metadata["host"].is_string() && given("username") && given("password"));
                if !whole {
                    found.push("does not know where the broker is, or who it is".to_owned());
                }
                // Over AMQP a queue's length is what waits in it; the management API adds what was taken.
                counts_running = metadata["protocol"] == "http";
                &metadata["value"]
            }
            "external-push" => {
                if !leads_to_service(rendering, text(&metadata["scalerAddress"])) {
                    found.push(format!("{} leads nowhere", metadata["scalerAddress"]));
                }
                if metadata["service"] != self.service() {
                    found.push(format!(
                        "asks about {}, and the worker works on {}",
                        metadata["service"],
                        self.service()
                    ));
                }
                &metadata["targetBacklog"]
            }
            other => {
                found.push(format!("has a trigger {other} that nobody knows"));
                return found;
            }
        };
        let job = scaled["kind"] == "ScaledJob";
        if job && target != "1" {
            found.push(format!("starts one Job for {target} tasks, and a Job takes one"));
        }
        let strategy = if counts_running { "default" } else { "accurate" };
        if job && scaled["spec"]["scalingStrategy"]["strategy"] != strategy {
            found.push(format!("would start too many Jobs, or too few: its strategy must be {strategy}"));
        }
        if job && scaled["spec"]["rollout"]["strategy"] != "gradual" {
            found.push("would kill Jobs that run when it is changed".to_owned());
        }
        found
    }
}

/// Whether `<service>.<namespace>.svc:<port>` is a Service of the rendering.
fn leads_to_service(rendering: &Rendering, place: &str) -> bool {
    let Some((host, port)) = place.split_once(':') else { return false };
    let Ok(port) = port.parse::<u64>() else { return false };
    let Some(name) = host.strip_suffix(&format!(".{NAMESPACE}.svc")) else { return false };
    named(&rendering.documents, "Service", name)
        .is_some_and(|service| list(&service["spec"]["ports"]).iter().any(|open| open["port"].as_u64() == Some(port)))
}
