//! How long a transport waits before it tries to connect again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// 50 ms, 100 ms, 200 ms… up to 5 s, each shortened by up to half, so that many instances do not come back at once.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next()).await;
    }

    fn next(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let chance = f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX);
        whole.mul_f64(1.0 - chance / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_limit() {
        let mut backoff = Backoff::default();
        for whole in [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let (wait, whole) = (backoff.next(), Duration::from_millis(whole));
            assert!(wait >= whole.mul_f64(0.499) && wait <= whole, "{wait:?} of {whole:?}");
        }
    }
}
