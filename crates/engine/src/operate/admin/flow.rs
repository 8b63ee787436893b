//! Declarations of flow limits, of a service and of a client.

use std::{collections::BTreeMap, time::Duration};

use relais_core::{Change, ClientFlow, Declared, FlowLimits, MAX_SHARE, RateLimit, TaskTransport};
use relais_protocol::{
    HumanDuration,
    admin::{AuthorizationDeclaration, RateLimitDeclaration, ServiceDeclaration},
};

use crate::Problem;

/// The longest time from one start to the next.
const LONGEST_PER: Duration = Duration::from_secs(30 * 86_400);

/// The longest time until a burst is possible again.
const LONGEST_REFILL: Duration = Duration::from_secs(365 * 86_400);

/// The most starts per second.
const MOST_A_SECOND: u128 = 1_000_000;

/// The largest dispatch window.
const MOST_IN_WINDOW: u32 = 100_000;

const NO_WINDOW: &str = "needs a dispatchWindow where tasks go to a broker (transport: rabbitmq), which hands out by itself what \
                         it has: set a dispatchWindow";

/// Reads the limits of a service; what is wrong with them is said by field.
pub(super) fn limits(
    service: &ServiceDeclaration,
    transport: TaskTransport,
    mut wrong: impl FnMut(&str, String),
) -> FlowLimits {
    let brokered = transport.is_brokered();
    // Tasks at a broker cannot be limited any more; tasks that wait for a window can.
    let given_away = brokered && service.dispatch_window.is_none();
    for (field, most) in [("maxRunning", service.max_running), ("maxRunningPerClient", service.max_running_per_client)]
    {
        if most.is_some() && given_away {
            wrong(field, NO_WINDOW.to_owned());
        }
        if let Some(problem) = most.and_then(out_of_range) {
            wrong(field, problem);
        }
    }
    let rate = service.rate_limit.map(|rate| RateLimit {
        count: rate.count,
        per: rate.per.0,
        burst: rate.burst.unwrap_or(rate.count),
    });
    if let Some(rate) = rate {
        if given_away {
            wrong("rateLimit", NO_WINDOW.to_owned());
        }
        rate_problems(rate, |field, problem| wrong(&format!("rateLimit/{field}"), problem));
    }
    let fair_share = service.fair_share.unwrap_or(false);
    if fair_share && given_away {
        wrong("fairShare", NO_WINDOW.to_owned());
    }
    if let Some(window) = service.dispatch_window {
        if !brokered {
            let message =
                "is for services of a broker (transport: rabbitmq); for the built-in queue there is maxRunning";
            wrong("dispatchWindow", message.to_owned());
        }
        if !(1..=MOST_IN_WINDOW).contains(&window) {
            wrong("dispatchWindow", format!("must be between 1 and {MOST_IN_WINDOW}"));
        }
    }
    FlowLimits {
        max_running: service.max_running,
        max_running_per_client: service.max_running_per_client,
        rate,
        fair_share,
        dispatch_window: service.dispatch_window,
    }
}

fn rate_problems(rate: RateLimit, mut wrong: impl FnMut(&str, String)) {
    if rate.count == 0 || i32::try_from(rate.count).is_err() {
        return wrong("count", format!("must be between 1 and {}", i32::MAX));
    }
    if rate.burst == 0 || i32::try_from(rate.burst).is_err() {
        return wrong("burst", format!("must be between 1 and {}", i32::MAX));
    }
    if rate.per.is_zero() || rate.per > LONGEST_PER {
        return wrong("per", "must be more than 0s, and at most 30d".to_owned());
    }
    if u128::from(rate.count) * 1_000_000 > MOST_A_SECOND * rate.per.as_micros() {
        return wrong("count", format!("must be at most {MOST_A_SECOND} a second"));
    }
    if rate.refills_in() > LONGEST_REFILL {
        wrong("burst", format!("would take {} to be possible again: at most 365d", HumanDuration(rate.refills_in())));
    }
}

fn out_of_range(most: u32) -> Option<String> {
    (most == 0 || i32::try_from(most).is_err())
        .then(|| format!("must be between 1 and {}; to stop a service, pause it", i32::MAX))
}

/// Reads a client's part.
pub(super) fn client_flow(
    authorization: &AuthorizationDeclaration,
    path: &str,
    problems: &mut Vec<Problem>,
) -> ClientFlow {
    if let Some(problem) = authorization.max_running.and_then(out_of_range) {
        problems.push(Problem::at(format!("{path}/maxRunning"), problem));
    }
    let share = authorization.share.unwrap_or(1);
    if !(1..=MAX_SHARE).contains(&share) {
        problems.push(Problem::at(format!("{path}/share"), format!("must be between 1 and {MAX_SHARE}")));
    }
    ClientFlow { max_running: authorization.max_running, share }
}

/// A limit of a client on a service that has a broker and no window would not be held to: neither a new one, nor one
/// that is there already and stays.
pub(super) fn without_a_window(
    declared: &Declared,
    changes: &[Change],
    stays: impl Fn(&str, &str) -> bool,
    problems: &mut Vec<Problem>,
) {
    let put = |wanted: &str| {
        changes.iter().find_map(|change| match change {
            Change::PutService { name, transport, limits, .. } if name.as_str() == wanted => {
                Some((*transport, limits.flow.dispatch_window))
            }
            _ => None,
        })
    };
    let mut limited: BTreeMap<(&str, &str), bool> = BTreeMap::new();
    for authorization in declared.authorizations.values().filter(|one| one.flow.max_running.is_some()) {
        let client = declared.client_by_key(authorization.client).map(|client| client.client_id.as_str());
        let service = declared.service_by_key(authorization.service).map(|service| service.name.as_str());
        if let (Some(client), Some(service)) = (client, service)
            && put(service).is_some()
            && stays(client, service)
        {
            limited.insert((client, service), true);
        }
    }
    for change in changes {
        let Change::PutAuthorization { client_id, service, flow, .. } = change else { continue };
        limited.insert((client_id.as_str(), service.as_str()), flow.max_running.is_some());
    }
    for ((client, service), _) in limited.into_iter().filter(|(_, limited)| *limited) {
        let known = || declared.services.get(service).map(|it| (it.transport, it.limits.flow.dispatch_window));
        if put(service).or_else(known) == Some((TaskTransport::RabbitMq, None)) {
            problems.push(Problem::at("/authorizations", format!("maxRunning of {client} on {service} {NO_WINDOW}")));
        }
    }
}

/// A rate as it is declared.
pub(super) fn rate_declaration(rate: RateLimit) -> RateLimitDeclaration {
    RateLimitDeclaration { count: rate.count, per: HumanDuration(rate.per), burst: Some(rate.burst) }
}
