//! `relais topology`: compares the exchanges, queues and bindings of a file with a broker, and makes what is missing.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, Subcommand};
use relais_messaging::rabbitmq::topology::{
    ApplyOptions, ObjectReport, ObjectState, Topology, TopologyError, TopologyFault, TopologyProblem, TopologyReport,
};

use super::{
    broker::BrokerArgs,
    table::{Column::*, table},
};
use crate::{declarations::parse_text, nearest::did_you_mean, output};

const AFTER_HELP: &str = "\
Exit codes:
  0  the broker has everything as the file says
  1  it could not be compared; stderr says why
  2  the command line was not understood
  3  plan: something would be created or deleted
  4  something at the broker differs from the file and stays as it is; all else is done";

/// The exit code if something would be changed.
const CHANGES: u8 = 3;

/// The exit code if something differs and stays.
const DIFFERENCES: u8 = 4;

/// `relais topology`
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true, after_help = AFTER_HELP)]
pub struct TopologyArgs {
    #[command(flatten)]
    broker: BrokerArgs,
    /// Print the comparison as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: TopologyCommand,
}

#[derive(Debug, Subcommand)]
enum TopologyCommand {
    /// Compare a file with the broker; changes nothing
    ///
    /// With the management API, every property and binding is compared, and what policies add is shown. Without it, it is only
    /// known which exchanges and queues exist.
    #[command(after_help = AFTER_HELP)]
    Plan(FileArgs),
    /// Create what is missing at the broker
    ///
    /// What exists stays as it is: a difference is reported, and all else is done. It may be run again and again, also by
    /// several at once.
    #[command(after_help = AFTER_HELP)]
    Apply(FileArgs),
}

#[derive(Debug, Args)]
struct FileArgs {
    /// The file, YAML or JSON; - reads stdin
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Delete bindings to the file's queues and exchanges that are not in the file; needs the management API
    #[arg(long)]
    delete_extra_bindings: bool,
}

/// Runs `relais topology`.
pub async fn run(args: TopologyArgs) -> Result<ExitCode> {
    let (TopologyCommand::Plan(file) | TopologyCommand::Apply(file)) = &args.command;
    let topology = read(&file.file)?;
    let (broker, management) = args.broker.connect().await?;
    let planned = matches!(args.command, TopologyCommand::Plan(_));
    let options = ApplyOptions { delete_extra_bindings: file.delete_extra_bindings };
    let done = match (planned, &management) {
        (true, None) if options.delete_extra_bindings => Err(TopologyError::ExtraBindingsUnknown),
        (true, _) => broker.plan_topology(&topology, management.as_ref()).await,
        (false, _) => broker.apply_topology(&topology, management.as_ref(), options).await,
    };
    let report = done.map_err(|error| match error {
        TopologyError::ExtraBindingsUnknown => {
            anyhow!("{error}; give its URL in RELAIS_BROKER_MANAGEMENT_URL, or with --management")
        }
        error => error.into(),
    })?;
    if args.json {
        output::data(&output::printable_json(&serde_json::to_string(&report)?))?;
    } else {
        output::data(&show(&report))?;
        if !report.compared {
            output::note("Without the management API, differences show only when the broker refuses them.");
        }
    }
    let changes = planned && (report.has_missing() || (options.delete_extra_bindings && report.has_extra_bindings()));
    Ok(match (report.has_differences(), changes) {
        (true, _) => ExitCode::from(DIFFERENCES),
        (false, true) => ExitCode::from(CHANGES),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// Reads a topology that makes sense.
pub(super) fn read(file: &Path) -> Result<Topology> {
    let (mut text, mut origin) = (String::new(), "stdin".to_owned());
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
    } else {
        origin = file.display().to_string();
        text = fs::read_to_string(file).with_context(|| format!("cannot read {origin}"))?;
    }
    let topology: Topology = parse_text(&text, &origin)?;
    match topology.check() {
        problems if problems.is_empty() => Ok(topology),
        problems => Err(refusal(&topology, &problems, &origin)),
    }
}

fn refusal(topology: &Topology, problems: &[TopologyProblem], origin: &str) -> anyhow::Error {
    let lines = problems.iter().map(|problem| {
        let hint = match &problem.fault {
            TopologyFault::UnknownExchange(name) => {
                did_you_mean(name, topology.exchanges.iter().map(|exchange| exchange.name.as_str()))
            }
            TopologyFault::UnknownQueue(name) => {
                did_you_mean(name, topology.queues.iter().map(|queue| queue.name.as_str()))
            }
            _ => String::new(),
        };
        format!("\n  {problem}{hint}")
    });
    anyhow!("{origin} is not a topology that can work:{}", lines.collect::<String>())
}

fn show(report: &TopologyReport) -> String {
    let rows = report
        .objects
        .iter()
        .map(|object| [object.state.as_str().to_owned(), object.object.to_string().replace('`', ""), details(object)]);
    table([Left("STATE"), Left("OBJECT"), Left("DETAILS")], rows, "The file declares nothing.")
}

fn details(object: &ObjectReport) -> String {
    let mut details: Vec<String> = object.differences.iter().map(ToString::to_string).collect();
    details.extend(object.why.clone());
    if object.differences.is_empty() && !object.policy.is_empty() {
        let policy = object.policy.iter().map(|(name, value)| format!("{name} {value}"));
        details.push(format!("by policy: {}", policy.collect::<Vec<_>>().join(", ")));
    }
    if object.state == ObjectState::Skipped {
        details.push("one of its ends is not as declared".to_owned());
    }
    details.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        format!("{:#}", read(file.path()).unwrap_err()).replace(&file.path().display().to_string(), "t.yaml")
    }

    #[test]
    fn a_file_that_is_wrong_is_refused_with_the_place_and_the_nearest_name() {
        let text = refused("queues:\n  - name: q\n    deadLetterExchnge: e\n");
        assert_eq!(text, "t.yaml:3:5: unknown key `deadLetterExchnge`: did you mean `deadLetterExchange`?");
        let text = refused("exchanges: [{name: e, type: topik}]");
        assert!(text.contains("`topik` is not known; expected direct or fanout or topic or headers"), "{text}");
        let text = refused("queues: [{name: orders}]\nbindings: [{exchange: amq.topic, queue: order}]");
        assert_eq!(
            text,
            "t.yaml is not a topology that can work:\n  bindings[0]: there is no queue `order` in the topology: did you \
             mean `orders`?"
        );
        assert!(refused("").contains("is empty"));
    }

    #[test]
    fn the_example_of_the_guide_is_read() {
        let page = include_str!("../../../../docs/guides/rabbitmq-consumers.md");
        let example = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let topology: Topology = parse_text(example, "guide").unwrap();
        assert_eq!(topology.check(), []);
        assert!(topology.queues.len() > 1 && topology.queues.iter().any(|queue| queue.max_retries == Some(3)));
    }
}
