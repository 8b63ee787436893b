//! On what terms a task is to be done: when, how urgently, how long, how often. As services and consumers say it, and
//! as the store keeps it.

use std::time::Duration;

use relais_core::{LONGEST_RETRY, MOST_RETRIES, Priority, RetryPolicy, Service, Terms, Timestamp, UniqueKey, When};
use relais_protocol::{
    HumanDuration,
    consumer::SubmitRequest,
    retry::{RetryDeclaration, RetryName, RetryRule},
};

use crate::{EngineError, Problem};

/// The longest delay of a task.
const FARTHEST: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The longest timeout of an attempt.
pub(crate) const LONGEST_TIMEOUT: Duration = Duration::from_secs(30 * 86_400);

const MAX_UNIQUE_KEY: usize = 200;

/// The most kinds of failures without retry, and the longest kind.
const MAX_KINDS: usize = 100;
const MAX_KIND: usize = 100;

/// What a submission says of its terms, judged.
pub(crate) fn terms(request: &SubmitRequest, service: &Service) -> Result<Terms, EngineError> {
    let mut problems = Vec::new();
    let mut wrong = |path: &str, message: String| problems.push(Problem::at(path, message));
    let priority = match request.priority.map(Priority::new) {
        None => Priority::default(),
        Some(Some(priority)) => priority,
        Some(None) => {
            wrong("/priority", "must be between 0 and 9".to_owned());
            Priority::default()
        }
    };
    let mut span = |path: &str, given: Option<HumanDuration>, longest: Duration| {
        let given = given?.0;
        if given.is_zero() || given > longest {
            wrong(path, format!("must be more than 0s, and at most {}", HumanDuration(longest)));
        }
        Some(given)
    };
    let expires = span("/expiresAfter", request.expires_after, FARTHEST);
    let timeout = span("/timeout", request.timeout, LONGEST_TIMEOUT);
    let lasting = span("/uniqueFor", request.unique_for, FARTHEST);
    let due = match (&request.scheduled_date, request.delay) {
        (Some(_), Some(_)) => {
            wrong("/delay", "is not for a task that has a scheduledDate".to_owned());
            None
        }
        (Some(date), None) => {
            let moment = Timestamp::parse(date).filter(|moment| moment.as_millis() < FARTHEST_MOMENT);
            if moment.is_none() {
                wrong("/scheduledDate", "must be a date like 2026-01-31T08:30:00Z".to_owned());
            }
            moment.map(When::At)
        }
        (None, Some(HumanDuration(delay))) => {
            if delay > FARTHEST {
                wrong("/delay", format!("must be at most {}", HumanDuration(FARTHEST)));
            }
            (!delay.is_zero()).then_some(When::After(delay))
        }
        (None, None) => None,
    };
    let unique = match &request.unique_key {
        Some(key) => {
            let fine = (1..=MAX_UNIQUE_KEY).contains(&key.chars().count()) && !key.chars().any(char::is_control);
            if !fine {
                let message = format!("must have 1 to {MAX_UNIQUE_KEY} characters, and no control characters");
                wrong("/uniqueKey", message);
            }
            Some(UniqueKey { key: key.clone(), lasting })
        }
        None => {
            if lasting.is_some() {
                wrong("/uniqueFor", "is of use with a uniqueKey only".to_owned());
            }
            None
        }
    };
    let retry = request.retry.as_ref().map(|declared| policy(declared, "/retry", &mut problems));
    if !problems.is_empty() {
        return Err(EngineError::Invalid(problems));
    }
    let head_start = priority.head_start(service.limits.priority_step);
    Ok(Terms { priority, head_start, due, expires, timeout, retry, unique, promised: false })
}

/// The year 2200: beyond it, nobody means it.
const FARTHEST_MOMENT: i64 = 7_258_118_400_000;

/// A policy as it is declared, judged.
pub(crate) fn policy(declared: &RetryDeclaration, path: &str, problems: &mut Vec<Problem>) -> RetryPolicy {
    let rule = match declared {
        RetryDeclaration::Named(RetryName::None) => return RetryPolicy::none(),
        RetryDeclaration::Named(RetryName::Classic) => return RetryPolicy::classic(),
        RetryDeclaration::Named(RetryName::Never) => return RetryPolicy::never(),
        RetryDeclaration::Rule(rule) => rule,
    };
    let mut wrong = |field: &str, message: String| problems.push(Problem::at(format!("{path}/{field}"), message));
    if rule.limit > MOST_RETRIES {
        wrong("limit", format!("must be at most {MOST_RETRIES}"));
    }
    for (field, given) in [("base", rule.base), ("cap", rule.cap)] {
        if given.is_some_and(|given| given.0 > LONGEST_RETRY) {
            wrong(field, format!("must be at most {}", HumanDuration(LONGEST_RETRY)));
        }
    }
    if rule.factor.is_some_and(|factor| !(1.0..=100.0).contains(&factor)) {
        wrong("factor", "must be between 1 and 100".to_owned());
    }
    if rule.jitter.is_some_and(|jitter| !(0.0..=1.0).contains(&jitter)) {
        wrong("jitter", "must be between 0 and 1".to_owned());
    }
    if rule.except_kinds.len() > MAX_KINDS
        || rule.except_kinds.iter().any(|kind| kind.is_empty() || kind.len() > MAX_KIND)
    {
        wrong("exceptKinds", format!("must be at most {MAX_KINDS} words of 1 to {MAX_KIND} bytes"));
    }
    let usual = RetryPolicy::none();
    RetryPolicy {
        limit: rule.limit,
        base: rule.base.map_or(usual.base, |base| base.0),
        factor: rule.factor.unwrap_or(usual.factor),
        cap: rule.cap.map(|cap| cap.0),
        jitter: rule.jitter.unwrap_or(usual.jitter),
        within: rule.within.map(|within| within.0),
        except_kinds: rule.except_kinds.clone(),
        never: false,
    }
}

/// A policy as it would be declared.
pub(crate) fn declared(policy: &RetryPolicy) -> RetryDeclaration {
    if policy.never {
        return RetryDeclaration::Named(RetryName::Never);
    }
    if *policy == RetryPolicy::none() {
        return RetryDeclaration::Named(RetryName::None);
    }
    if *policy == RetryPolicy::classic() {
        return RetryDeclaration::Named(RetryName::Classic);
    }
    RetryDeclaration::Rule(RetryRule {
        limit: policy.limit,
        base: Some(HumanDuration(policy.base)),
        factor: Some(policy.factor),
        cap: policy.cap.map(HumanDuration),
        jitter: (policy.jitter != 0.0).then_some(policy.jitter),
        within: policy.within.map(HumanDuration),
        except_kinds: policy.except_kinds.clone(),
    })
}
