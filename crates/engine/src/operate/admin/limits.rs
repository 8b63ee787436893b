//! Changing a service's limits while it runs, and nothing else of it.

use relais_protocol::{
    HumanDuration,
    admin::{Declaration, LimitsChange, RateLimitDeclaration, ServiceDeclaration, ServiceState},
};

use super::service_declaration;
use crate::{Engine, EngineError, Problem};

impl Engine {
    /// Changes some limits of a service; what is not named stays. Held to from the next claim or submission on.
    pub async fn change_limits(&self, name: &str, change: LimitsChange) -> Result<ServiceState, EngineError> {
        let service = self.declared_service(name).await?;
        let declared = changed(service_declaration(&service), change)?;
        // By the same way as any declaration, and judged like one.
        let applied = self.apply(Declaration { services: vec![declared], ..Declaration::default() }, false, false);
        applied.await?;
        self.service_state(name).await
    }
}

fn changed(mut declared: ServiceDeclaration, change: LimitsChange) -> Result<ServiceDeclaration, EngineError> {
    let set = |limit: &mut Option<u32>, value: Option<u32>| {
        if let Some(value) = value {
            *limit = Some(value).filter(|value| *value > 0);
        }
    };
    set(&mut declared.capacity, change.capacity);
    set(&mut declared.max_running, change.max_running);
    set(&mut declared.max_running_per_client, change.max_running_per_client);
    set(&mut declared.dispatch_window, change.dispatch_window);
    if let Some(rate) = change.rate_limit {
        declared.rate_limit = rate_limit(rate.trim())?;
    }
    // As it is at this moment, whoever pauses it meanwhile.
    declared.paused = None;
    Ok(declared)
}

/// `100/1s`; nothing means none.
fn rate_limit(text: &str) -> Result<Option<RateLimitDeclaration>, EngineError> {
    if text.is_empty() || text == "0" {
        return Ok(None);
    }
    let parts = text.split_once('/').and_then(|(count, per)| {
        let per: HumanDuration = per.trim().parse().ok()?;
        Some(RateLimitDeclaration { count: count.trim().parse().ok()?, per, burst: None })
    });
    let wrong = || EngineError::Invalid(vec![Problem::at("/rateLimit", "must be like 100/1s")]);
    parts.map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_rate_is_a_number_in_a_time_or_nothing() {
        let rate = rate_limit("100 / 1m").unwrap().unwrap();
        assert_eq!((rate.count, rate.per.0, rate.burst), (100, Duration::from_secs(60), None));
        assert_eq!(rate_limit("").unwrap(), None);
        assert_eq!(rate_limit("0").unwrap(), None);
        for wrong in ["100", "1s", "-1/1s", "1/", "/1s", "1/1"] {
            assert!(rate_limit(wrong).is_err(), "{wrong}");
        }
    }
}
