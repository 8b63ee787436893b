//! Which bindings of an exchange take a routing key, as far as that is certain.

use super::{BindingDeclaration, ExchangeType};

/// Whether a binding takes a message with this routing key. `None`: that depends on the message.
pub(super) fn takes(kind: ExchangeType, binding: &BindingDeclaration, key: Option<&str>) -> Option<bool> {
    match kind {
        ExchangeType::Fanout => Some(true),
        ExchangeType::Direct => key.map(|key| key == binding.routing_key),
        ExchangeType::Topic if binding.routing_key == "#" => Some(true),
        ExchangeType::Topic => key.map(|key| matches_topic(&binding.routing_key, key)),
        ExchangeType::Headers => None,
    }
}

fn matches_topic(pattern: &str, key: &str) -> bool {
    let words_of = |text: &'_ str| text.split('.').filter(|_| !text.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let (pattern, words) = (words_of(pattern), words_of(key));
    // Which beginnings of the pattern take the words so far. `#` also takes none.
    let mut reached = vec![false; pattern.len() + 1];
    reached[0] = true;
    let skip = |reached: &mut Vec<bool>| {
        for (place, part) in pattern.iter().enumerate() {
            reached[place + 1] |= reached[place] && part == "#";
        }
    };
    skip(&mut reached);
    for word in words {
        let mut next = vec![false; reached.len()];
        for (place, part) in pattern.iter().enumerate() {
            next[place + 1] |= reached[place] && (part == "*" || *part == word);
            // Stays at a `#` that has taken a word.
            next[place + 1] |= reached[place + 1] && part == "#";
        }
        skip(&mut next);
        reached = next;
    }
    reached[pattern.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_patterns_match_as_brokers_match_them() {
        for (pattern, key, wanted) in [
            ("#", "", true),
            ("#", "a.b", true),
            ("*", "a", true),
            ("*", "a.b", false),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.#", "a", true),
            ("a.#", "a.b.c", true),
            ("a.#", "b", false),
            ("#.c", "a.b.c", true),
            ("#.c", "c", true),
            ("#.c", "a.c.b", false),
            ("a.#.c.*", "a.b.c.c.d", true),
            ("a.*.#", "a", false),
            ("", "", true),
            ("", "a", false),
            ("a", "a", true),
            ("#.#", "", true),
        ] {
            assert_eq!(matches_topic(pattern, key), wanted, "{pattern} {key}");
        }
    }

    #[test]
    fn what_depends_on_the_message_is_not_certain() {
        let binding = BindingDeclaration::to_queue("e", "q").routing_key("a");
        assert_eq!(takes(ExchangeType::Direct, &binding, None), None);
        assert_eq!(takes(ExchangeType::Headers, &binding, Some("a")), None);
        assert_eq!(takes(ExchangeType::Fanout, &binding, None), Some(true));
    }
}
