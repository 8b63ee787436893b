//! Compares what was promised with what the servers say.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Value;

use super::{Api, Ledger, SERVICE, ledger::Book};

/// How often the counters are looked at while the last tasks end.
const LOOK: Duration = Duration::from_millis(50);

/// What became of a run.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Tasks that were answered 201.
    pub tasks: usize,
    /// How often something was broken.
    pub faults: usize,
    /// Tasks that were answered 201, and are gone or have another result than a worker was told.
    pub lost: usize,
    /// Things that were wanted once and are there twice, and tasks with two accepted results.
    pub doubled: usize,
    /// Tasks that have not ended.
    pub stuck: usize,
    /// What else is not as it should be, and what the numbers above are about.
    pub findings: Vec<String>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, faults, lost, doubled, stuck, .. } = self;
        write!(f, "tasks {tasks}, faults {faults}, lost {lost}, doubled {doubled}, stuck {stuck}")
    }
}

impl Verdict {
    /// Prints the line, and fails unless all is well.
    #[expect(clippy::print_stdout, reason = "the result of a run, also when it is good")]
    pub fn report(self, name: &str) -> Result<()> {
        println!("{name}: {self}");
        if self.lost + self.doubled + self.stuck > 0 || !self.findings.is_empty() {
            let shown: Vec<&str> = self.findings.iter().take(20).map(String::as_str).collect();
            bail!("{name}: {self}\n{} findings:\n{}", self.findings.len(), shown.join("\n"));
        }
        if self.tasks == 0 || self.faults == 0 {
            bail!("{name}: {self}: this run proves nothing");
        }
        Ok(())
    }
}

/// Waits until no task of the service is unfinished. Says so, and does not fail, if the time is up: the verdict will.
pub async fn wait_until_drained(url: &str, deadline: Duration) -> Result<()> {
    let (admin, begun) = (Api::admin(url)?, Instant::now());
    loop {
        // The server may have been restarted a moment ago.
        if let Ok(answer) = admin.get(&format!("/admin/services/{SERVICE}")).await
            && let Ok(state) = answer.data()
            && state["pending"] == 0
            && state["inProgress"] == 0
        {
            return Ok(());
        }
        if begun.elapsed() > deadline {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Judges a run that is over, as the server at `url` sees it.
pub async fn judge(url: &str, ledger: &Ledger, faults: usize) -> Result<Verdict> {
    let stored = list_all(url).await.context("list what is stored")?;
    let mut verdict = Verdict { tasks: ledger.tasks(), faults, ..Verdict::default() };
    compare_counters(url, &stored, &mut verdict).await?;

    let mut by_mark: HashMap<&str, Vec<&str>> = HashMap::new();
    for (task_id, task) in &stored {
        by_mark.entry(&task.mark).or_default().push(task_id);
        if !task.is_final() {
            verdict.stuck += 1;
            verdict.findings.push(format!("task {task_id} of {} is {}", task.mark, task.status));
        }
    }
    for (mark, tasks) in by_mark.iter().filter(|(_, tasks)| tasks.len() > 1) {
        verdict.doubled += 1;
        verdict.findings.push(format!("{mark} was wanted once and became {tasks:?}"));
    }

    let promised: Vec<String> = ledger.book().accepted.keys().cloned().collect();
    let consumer = super::consumer(url)?;
    let found: Vec<(String, Option<Value>)> = stream::iter(promised)
        .map(|task_id| {
            let consumer = &consumer;
            async move {
                let answer = consumer.get(&format!("/v1/services/{SERVICE}/tasks/{task_id}")).await?;
                let view = if answer.status == 404 { None } else { Some(answer.data()?) };
                anyhow::Ok((task_id, view))
            }
        })
        .buffer_unordered(16)
        .try_collect()
        .await
        .context("ask for every task that was answered 201")?;
    let book = ledger.book();
    for (task_id, view) in found {
        judge_task(&task_id, view, &book, &mut verdict);
    }
    verdict.findings.extend(book.wrong.iter().cloned());
    Ok(verdict)
}

fn judge_task(task_id: &str, view: Option<Value>, book: &Book, verdict: &mut Verdict) {
    let told = book.told.get(task_id).map_or(&[][..], Vec::as_slice);
    if told.len() > 1 {
        verdict.doubled += 1;
        verdict.findings.push(format!("task {task_id} has two accepted results: {told:?}"));
    }
    let Some(view) = view else {
        verdict.lost += 1;
        return verdict.findings.push(format!("task {task_id} was answered 201 and is not there"));
    };
    let recorded = match view["status"].as_str() {
        Some("SUCCESS") => view["response"]["result"].as_str(),
        Some("FAILURE") => view["errorMessage"].as_str(),
        // Counted as stuck from the listing.
        _ => return,
    };
    let as_told = told.iter().all(|result| recorded == Some(result));
    let was_sent = recorded.is_some_and(|result| book.sent.get(task_id).is_some_and(|sent| sent.contains(result)));
    if !as_told || !was_sent {
        verdict.lost += 1;
        verdict.findings.push(format!("task {task_id} has the result {recorded:?}; a worker was told {told:?}"));
    }
}

struct Stored {
    status: String,
    mark: String,
}

impl Stored {
    fn is_final(&self) -> bool {
        !matches!(self.status.as_str(), "PENDING" | "IN_PROGRESS")
    }
}

async fn list_all(url: &str) -> Result<HashMap<String, Stored>> {
    let admin = Api::admin(url)?;
    let (mut stored, mut cursor) = (HashMap::new(), String::new());
    loop {
        let page = admin.get(&format!("/admin/tasks?service={SERVICE}&limit=200{cursor}")).await?.data()?;
        for entry in page["tasks"].as_array().context("a page without tasks")? {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let task = &entry["task"];
            let task_id = text(&task["taskId"]).context("a task without a name")?;
            let status = text(&task["status"]).context("a task without a status")?;
            let mark = text(&task["correlationId"]).context("a task without its mark")?;
            if stored.insert(task_id.clone(), Stored { status, mark }).is_some() {
                bail!("task {task_id} is listed twice");
            }
        }
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(stored),
        }
    }
}

/// The counters that the service keeps must be what counting gives.
async fn compare_counters(url: &str, stored: &HashMap<String, Stored>, verdict: &mut Verdict) -> Result<()> {
    let services = Api::admin(url)?.get("/admin/services").await?.data()?;
    let services = services["services"].as_array().context("no services")?;
    let service = services.iter().find(|service| service["serviceName"] == SERVICE).context("the service is gone")?;
    let mut counted: BTreeMap<&str, u64> = BTreeMap::new();
    for task in stored.values() {
        *counted.entry(task.status.as_str()).or_default() += 1;
    }
    let names = [
        ("PENDING", "pending"),
        ("IN_PROGRESS", "inProgress"),
        ("SUCCESS", "success"),
        ("FAILURE", "failure"),
        ("CANCELLED", "cancelled"),
    ];
    for (status, field) in names {
        let (counted, kept) = (counted.get(status).copied().unwrap_or(0), service[field].as_u64());
        if kept != Some(counted) {
            verdict.findings.push(format!("the counter of {status} is {kept:?}, counting gives {counted}"));
        }
    }
    Ok(())
}
