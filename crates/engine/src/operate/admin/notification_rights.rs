//! Rights of clients for notifications: what is declared, checked and read, and what is shown.

use std::collections::BTreeSet;

use relais_core::{AudienceTypes, NotificationRights};
use relais_protocol::admin::{NotificationRightsDeclaration, TicketDeclaration};

use crate::Problem;

/// The most types of audience of a right.
const MAX_TYPES: usize = 100;

/// The longest name of a type of audience, in bytes.
const LONGEST_TYPE: usize = 200;

/// Says what is wrong with the rights declared at `path`.
pub(super) fn check(wanted: &NotificationRightsDeclaration, path: &str, problems: &mut Vec<Problem>) {
    check_types(&wanted.emit, &format!("{path}/emit"), problems);
    check_types(&wanted.audience, &format!("{path}/audience"), problems);
    if let Some(TicketDeclaration::Types(types)) = &wanted.ticket {
        let path = format!("{path}/ticket");
        // Elsewhere an empty list means that nothing is allowed; here one could read it either way.
        if types.is_empty() {
            let message = "must not be empty: write `true` for tickets that name the user only, `false` for none";
            problems.push(Problem::at(path.clone(), message));
        }
        check_types(types, &path, problems);
    }
}

fn check_types(types: &[String], path: &str, problems: &mut Vec<Problem>) {
    if types.len() > MAX_TYPES {
        problems.push(Problem::at(path, format!("must be at most {MAX_TYPES}")));
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, kind) in types.iter().enumerate() {
        let path = format!("{path}/{i}");
        if !(1..=LONGEST_TYPE).contains(&kind.len()) || kind.contains(char::is_control) {
            let message = format!("must have 1 to {LONGEST_TYPE} bytes, without control characters");
            problems.push(Problem::at(path, message));
        } else if kind == AudienceTypes::ALL && types.len() > 1 {
            problems.push(Problem::at(path, "stands for all types: it must be alone in its list"));
        } else if !seen.insert(kind) {
            problems.push(Problem::at(path, format!("type {kind} is declared twice")));
        }
    }
}

/// The rights that are declared.
pub(super) fn rights(wanted: &NotificationRightsDeclaration) -> NotificationRights {
    let types = |types: &[String]| AudienceTypes::from(types.iter().cloned().collect::<BTreeSet<_>>());
    NotificationRights {
        emit: types(&wanted.emit),
        audience: types(&wanted.audience),
        ticket: match &wanted.ticket {
            None | Some(TicketDeclaration::Allowed(false)) => None,
            Some(TicketDeclaration::Allowed(true)) => Some(AudienceTypes::NONE),
            Some(TicketDeclaration::Types(named)) => Some(types(named)),
        },
    }
}

/// The rights as one would declare them; none if there are none.
pub(super) fn declaration(rights: &NotificationRights) -> Option<NotificationRightsDeclaration> {
    (!rights.is_empty()).then(|| NotificationRightsDeclaration {
        emit: rights.emit.to_vec(),
        audience: rights.audience.to_vec(),
        ticket: rights.ticket.as_ref().map(|named| match named.is_empty() {
            true => TicketDeclaration::Allowed(true),
            false => TicketDeclaration::Types(named.to_vec()),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(json: &str) -> NotificationRightsDeclaration {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn what_is_shown_can_be_declared_again() {
        for json in [
            r#"{"emit":["GROUP","USER"],"audience":["*"],"ticket":true}"#,
            r#"{"emit":["*"],"ticket":["GROUP"]}"#,
            r#"{"ticket":["*"]}"#,
        ] {
            let wanted = declared(json);
            assert_eq!(declaration(&rights(&wanted)), Some(wanted));
        }
        for json in ["{}", r#"{"emit":[],"ticket":false}"#] {
            assert_eq!(declaration(&rights(&declared(json))), None, "{json}");
        }
    }

    #[test]
    fn each_problem_is_said_where_it_is() {
        let types = |count: usize| (0..count).map(|n| format!("T{n}")).collect::<Vec<_>>();
        let wanted = NotificationRightsDeclaration {
            emit: vec!["USER".to_owned(), String::new(), "x".repeat(201), "a\nb".to_owned(), "USER".to_owned()],
            audience: types(101),
            ticket: Some(TicketDeclaration::Types(vec!["GROUP".to_owned(), "*".to_owned()])),
        };
        let mut problems = Vec::new();
        check(&wanted, "/n", &mut problems);
        let paths: Vec<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["/n/emit/1", "/n/emit/2", "/n/emit/3", "/n/emit/4", "/n/audience", "/n/ticket/1"]);

        let mut problems = Vec::new();
        check(&declared(r#"{"ticket":[]}"#), "/n", &mut problems);
        assert_eq!(problems.len(), 1, "it could be read as `true` and as `false`");

        let wanted =
            NotificationRightsDeclaration { emit: types(100), audience: vec!["x".repeat(200)], ..Default::default() };
        let mut problems = Vec::new();
        check(&wanted, "/n", &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
    }
}
