//! The W3C trace context of a task: taken from its consumer, and passed on to workers and callbacks.
//!
//! Relais only passes it on. A malformed trace context is dropped, and nothing is refused because of it.

/// The most members of a `tracestate`.
const MOST_MEMBERS: usize = 32;

/// The most bytes of a `tracestate`. A longer one may be dropped by anybody, and is dropped here.
const LONGEST_STATE: usize = 512;

/// The most bytes of a `traceparent`. Later versions of the grammar may add to it.
const LONGEST_PARENT: usize = 128;

/// A trace context that conforms to the W3C's grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    traceparent: String,
    tracestate: Option<String>,
}

impl TraceContext {
    /// Reads the two headers; none if `traceparent` is malformed. A `tracestate` that is malformed is left out alone.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let traceparent = traceparent.trim_matches([' ', '\t']);
        is_parent(traceparent)
            .then(|| Self { traceparent: traceparent.to_owned(), tracestate: tracestate.and_then(state) })
    }

    /// `traceparent`: version, trace, parent span, flags.
    pub fn traceparent(&self) -> &str {
        &self.traceparent
    }

    /// `tracestate`: what vendors add.
    pub fn tracestate(&self) -> Option<&str> {
        self.tracestate.as_deref()
    }

    /// Both headers as one text, for storage.
    pub fn to_text(&self) -> String {
        match &self.tracestate {
            Some(state) => format!("{}\n{state}", self.traceparent),
            None => self.traceparent.clone(),
        }
    }

    /// Reads a stored text.
    pub fn from_text(text: &str) -> Option<Self> {
        match text.split_once('\n') {
            Some((parent, state)) => Self::parse(parent, Some(state)),
            None => Self::parse(text, None),
        }
    }
}

/// `version-traceid-parentid-flags`, in lower-case digits; version `ff` is none, and ids are not all zeros.
fn is_parent(text: &str) -> bool {
    let hex = |part: &str, digits: usize| {
        part.len() == digits && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let some = |part: &str| part.bytes().any(|byte| byte != b'0');
    let mut parts = text.splitn(5, '-');
    let (Some(version), Some(trace), Some(span), Some(flags)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    // Version 00 ends here. Later versions may say more, in characters that a header takes.
    let rest = parts.next();
    let fine = rest.is_none_or(|rest| version != "00" && rest.bytes().all(|byte| byte.is_ascii_graphic()));
    text.len() <= LONGEST_PARENT
        && fine
        && hex(version, 2)
        && version != "ff"
        && hex(trace, 32)
        && some(trace)
        && hex(span, 16)
        && some(span)
        && hex(flags, 2)
}

/// The valid members, without empty ones; none if one is invalid or there are too many.
fn state(text: &str) -> Option<String> {
    if text.len() > LONGEST_STATE {
        return None;
    }
    let members: Vec<&str> =
        text.split(',').map(|member| member.trim_matches([' ', '\t'])).filter(|member| !member.is_empty()).collect();
    let mut keys: Vec<&str> = members.iter().filter_map(|member| Some(member.split_once('=')?.0)).collect();
    keys.sort_unstable();
    keys.dedup();
    let fine = (1..=MOST_MEMBERS).contains(&members.len()) && keys.len() == members.len();
    (fine && members.iter().all(|member| is_member(member))).then(|| members.join(","))
}

fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else { return false };
    let simple = |key: &str, longest: usize| {
        key.len() <= longest
            && key.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-*/".contains(&b))
    };
    let key_fits = match key.split_once('@') {
        Some((tenant, system)) => {
            simple(tenant, 241) && simple(system, 14) && system.starts_with(|c: char| c.is_ascii_lowercase())
        }
        None => simple(key, 256) && key.starts_with(|c: char| c.is_ascii_lowercase()),
    };
    let value_fits = (1..=256).contains(&value.len())
        && value.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b',' | b'='));
    key_fits && value_fits
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_trace_context_is_kept() {
        for (parent, state) in [
            (PARENT, None),
            (PARENT, Some("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what.the.future", Some("1a-b@ven=x y")),
        ] {
            let context = TraceContext::parse(parent, state).unwrap();
            assert_eq!((context.traceparent(), context.tracestate()), (parent, state));
            assert_eq!(TraceContext::from_text(&context.to_text()), Some(context));
        }
    }

    #[test]
    fn a_malformed_trace_context_is_dropped() {
        for parent in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-\n",
        ] {
            assert_eq!(TraceContext::parse(parent, None), None, "{parent:?}");
        }
        let many: Vec<String> = (0..33).map(|n| format!("v{n}=1")).collect();
        for state in ["", "x", "X=1", "a=", "a=1=2", "a=1,a=2", "a=\u{e9}", &many.join(","), &"a".repeat(600)] {
            let context = TraceContext::parse(PARENT, Some(state)).unwrap();
            assert_eq!(context.tracestate(), None, "{state:?}");
        }
        assert_eq!(TraceContext::parse(PARENT, Some(" a=1 ,, b=2 ")).unwrap().tracestate(), Some("a=1,b=2"));
    }
}
