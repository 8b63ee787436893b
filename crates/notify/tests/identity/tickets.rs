//! Tickets: issued, verified, forged.

use std::time::Duration;

use relais_notify::{AudienceKey, Identities, Identity, InvalidIdentity, TicketRefused, Tickets, TokenRefused};

use crate::{NOW, at};

const KEY: [u8; 32] = [7; 32];
const HOUR: Duration = Duration::from_secs(3600);

fn ann() -> Identity {
    let audiences =
        [AudienceKey::new("ROLE", "admin"), AudienceKey::new("GROUP", "1b"), AudienceKey::new("GROUP", "é")];
    Identity::new("ann", audiences, None).unwrap()
}

fn refused(tickets: &Tickets, identity: &Identity, ttl: Option<Duration>) -> TicketRefused {
    tickets.issue(identity, NOW, ttl).unwrap_err()
}

#[test]
fn a_ticket_is_the_identity_until_it_expires() {
    let tickets = Tickets::new(KEY);
    let (ticket, expires) = tickets.issue(&ann(), NOW, Some(HOUR)).unwrap();
    assert_eq!(expires, at(3600));
    assert!(ticket.starts_with("rt_"));
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    assert!(ticket.bytes().all(is_safe), "fits into an address: {ticket}");
    assert!(ticket.len() < 150, "is short: {}", ticket.len());
    let identities = Identities::new(None, Some(tickets));
    for seconds in [0, 0, 1, 3599] {
        let identity = identities.verify(&ticket, at(seconds)).unwrap();
        assert_eq!(identity, Identity { expires: Some(expires), ..ann() });
    }
    for seconds in [3600, 3601, 999_999] {
        assert_eq!(identities.verify(&ticket, at(seconds)), Err(TokenRefused::Expired));
    }
}

#[test]
fn the_time_of_a_ticket_is_bounded() {
    let tickets = Tickets::new(KEY);
    let issue = |tickets: &Tickets, ttl| tickets.issue(&ann(), NOW, ttl).map(|(_, expires)| expires);
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(issue(&tickets, None), Ok(at(3600)));
    assert_eq!(issue(&tickets, seconds(86_400)), Ok(at(86_400)));
    let day = TicketRefused::BadTtl { longest: Duration::from_secs(86_400) };
    for ttl in [seconds(86_401), seconds(0), Some(Duration::from_millis(999)), Some(Duration::MAX)] {
        assert_eq!(refused(&tickets, &ann(), ttl), day);
    }
    let brief = tickets.with_longest_ttl(Duration::from_secs(60));
    assert_eq!(issue(&brief, None), Ok(at(60)));
    assert_eq!(refused(&brief, &ann(), seconds(61)), TicketRefused::BadTtl { longest: Duration::from_secs(60) });
    assert_eq!(refused(&brief, &ann(), seconds(61)).to_string(), "a ticket is valid for 1 to 60 seconds");
}

#[test]
fn a_ticket_does_not_outlive_the_identity_that_it_is_issued_for() {
    let tickets = Tickets::new(KEY);
    let until = |seconds| Identity { expires: Some(at(seconds)), ..ann() };
    let (ticket, expires) = tickets.issue(&until(10), NOW, Some(HOUR)).unwrap();
    assert_eq!(expires, at(10));
    assert_eq!(tickets.verify(&ticket, at(10)), Err(TokenRefused::Expired));
    assert_eq!(tickets.issue(&until(9999), NOW, Some(HOUR)).unwrap().1, at(3600));
    for seconds in [0, -1] {
        assert_eq!(refused(&tickets, &until(seconds), None), TicketRefused::Expired);
    }
}

#[test]
fn no_single_flipped_bit_gets_in() {
    let tickets = Tickets::new(KEY);
    let identities = Identities::new(None, Some(tickets.clone()));
    let (ticket, _) = tickets.issue(&ann(), NOW, None).unwrap();
    assert!(identities.verify(&ticket, NOW).is_ok());
    for (place, bit) in (0..ticket.len()).flat_map(|place| (0..7).map(move |bit| (place, bit))) {
        let mut bytes = ticket.clone().into_bytes();
        bytes[place] ^= 1 << bit;
        let flipped = String::from_utf8(bytes).unwrap();
        assert!(tickets.verify(&flipped, NOW).is_err(), "{place} {bit}");
        assert!(identities.verify(&flipped, NOW).is_err(), "{place} {bit}");
    }
    for length in 0..ticket.len() {
        assert!(tickets.verify(&ticket[..length], NOW).is_err(), "{length}");
    }
    for longer in [format!("{ticket}A"), format!("{ticket}AAAA"), format!("{ticket}="), format!("rt_{ticket}")] {
        assert!(tickets.verify(&longer, NOW).is_err(), "{longer}");
    }
    let huge = format!("rt_{}", "A".repeat(8 * 1024));
    assert!(matches!(tickets.verify(&huge, NOW), Err(TokenRefused::TooLong { .. })));
}

#[test]
fn keys_rotate() {
    let (old, new) = ([1; 32], [2; 32]);
    let issued_by = |tickets: &Tickets| tickets.issue(&ann(), NOW, None).unwrap().0;
    let before = Tickets::new(old).with_other_keys([new]);
    let during = Tickets::new(new).with_other_keys([old]);
    let after = Tickets::new(new);
    for ticket in [issued_by(&before), issued_by(&during)] {
        assert!(before.verify(&ticket, NOW).is_ok());
        assert!(during.verify(&ticket, NOW).is_ok());
    }
    assert!(after.verify(&issued_by(&during), NOW).is_ok());
    assert_eq!(after.verify(&issued_by(&before), NOW), Err(TokenRefused::BadSignature));
    assert_eq!(Tickets::new([3; 32]).verify(&issued_by(&after), NOW), Err(TokenRefused::BadSignature));
}

#[test]
fn identities_that_can_not_be_get_no_ticket() {
    let tickets = Tickets::new(KEY);
    let with = |user: &str, audiences| Identity { user: user.to_owned(), audiences, expires: None };
    let group = |number: usize| AudienceKey::new("GROUP", format!("{number:05}"));
    for (identity, why) in [
        (with("", vec![]), InvalidIdentity::BadUser),
        (with("a\tb", vec![]), InvalidIdentity::BadUser),
        (with("ann", vec![AudienceKey::user("bob")]), InvalidIdentity::UserInAudiences),
        (with("ann", vec![AudienceKey::new("GROUP", "")]), InvalidIdentity::BadAudience),
        (with("ann", (0..1001).map(group).collect()), InvalidIdentity::TooManyAudiences { found: 1001 }),
    ] {
        assert_eq!(refused(&tickets, &identity, None), TicketRefused::Identity(why));
    }
    let large = with("ann", (0..1000).map(group).collect());
    assert!(matches!(refused(&tickets, &large, None), TicketRefused::TooLong { limit: 8192, .. }));
    let (ticket, _) = tickets.issue(&with("ann", (0..700).map(group).collect()), NOW, None).unwrap();
    assert_eq!(tickets.verify(&ticket, NOW).unwrap().audiences.len(), 700);
}
