//! Who belongs to an audience, and since when: members and nested targets, as intervals over positions of the log.
//!
//! A change of membership takes a position of the log like a message does, so "was a member when the message was emitted" has
//! one answer, whatever clocks say. A user of the type [`USER`] is their own and only member.
//!
//! This is the rule. Stores answer the same questions by SQL, and their suite compares them with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// The type of audience whose targets are users.
pub const USER: &str = "USER";

/// A position in the log of messages. The first entry has position 1.
pub type LogPosition = u64;

/// One target of one type, such as `GROUP:teachers`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AudienceKey {
    /// The type of audience.
    pub kind: String,
    /// The target.
    pub target: String,
}

impl AudienceKey {
    /// The key of a target.
    pub fn new(kind: impl Into<String>, target: impl Into<String>) -> Self {
        Self { kind: kind.into(), target: target.into() }
    }

    /// The key of a user.
    pub fn user(user: impl Into<String>) -> Self {
        Self::new(USER, user)
    }
}

impl fmt::Display for AudienceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.target)
    }
}

/// From one position up to, but not including, another; or for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Interval {
    from: LogPosition,
    to: Option<LogPosition>,
}

impl Interval {
    fn has(self, position: LogPosition) -> bool {
        self.from <= position && self.to.is_none_or(|to| position < to)
    }
}

/// Which part of the past an answer is about.
#[derive(Debug, Clone, Copy)]
enum During {
    /// At this position.
    At(LogPosition),
    /// At this position and ever since, without a gap.
    Since(LogPosition),
}

/// Behind all that was ever changed.
const NOW: During = During::At(LogPosition::MAX);

/// What an audience key contains directly, with the intervals of each.
type Links = BTreeMap<AudienceKey, BTreeMap<AudienceKey, Vec<Interval>>>;

/// A type of audience that nobody has declared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no type of audience {kind:?}; there are {known}, and others are declared under `audiences`")]
pub struct UnknownAudienceType {
    /// What was asked for, shortened.
    pub kind: String,
    /// What there is.
    pub known: String,
}

/// Why a change of membership is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MembershipRefused {
    /// A target would contain itself.
    #[error("{0} would contain itself")]
    Cycle(AudienceKey),
    /// A user is a member, and has none.
    #[error("{0} is a user and can have no members")]
    UserHasMembers(AudienceKey),
    /// There is no such type.
    #[error(transparent)]
    UnknownType(#[from] UnknownAudienceType),
    /// Positions of the log only grow.
    #[error("position {0} is before the last change of membership")]
    InThePast(LogPosition),
}

/// Who belongs to which audience, and since when.
///
/// ```
/// use relais_notify::{AudienceKey, Memberships};
///
/// let (school, class, ann) = (
///     AudienceKey::new("STRUCTURE", "school"),
///     AudienceKey::new("GROUP", "1b"),
///     AudienceKey::user("ann"),
/// );
/// let mut memberships = Memberships::default();
/// memberships.join(&school, &class, 1)?;
/// memberships.join(&class, &ann, 2)?;
/// assert!(memberships.members_at(&school, 2).contains("ann"));
/// memberships.leave(&school, &class, 3)?;
/// assert!(memberships.members_at(&school, 3).is_empty());
/// # Ok::<(), relais_notify::MembershipRefused>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Memberships {
    links: Links,
    last: LogPosition,
}

impl Memberships {
    /// From `position` on, `whole` contains `part`: a user, or another target with all its members. True if that is new.
    pub fn join(
        &mut self,
        whole: &AudienceKey,
        part: &AudienceKey,
        position: LogPosition,
    ) -> Result<bool, MembershipRefused> {
        if whole.kind == USER {
            return Err(MembershipRefused::UserHasMembers(whole.clone()));
        }
        if whole == part || self.contains_now(part, whole) {
            return Err(MembershipRefused::Cycle(whole.clone()));
        }
        self.advance(position)?;
        let intervals = self.links.entry(whole.clone()).or_default().entry(part.clone()).or_default();
        if intervals.last().is_some_and(|last| last.to.is_none()) {
            return Ok(false);
        }
        intervals.push(Interval { from: position, to: None });
        Ok(true)
    }

    /// From `position` on, `whole` does not contain `part` any more. True if it did.
    pub fn leave(
        &mut self,
        whole: &AudienceKey,
        part: &AudienceKey,
        position: LogPosition,
    ) -> Result<bool, MembershipRefused> {
        self.advance(position)?;
        let open = self.links.get_mut(whole).and_then(|parts| parts.get_mut(part)).and_then(|all| all.last_mut());
        let Some(open) = open.filter(|last| last.to.is_none()) else { return Ok(false) };
        open.to = Some(position);
        Ok(true)
    }

    /// The users who belonged to a target at a position.
    pub fn members_at(&self, key: &AudienceKey, position: LogPosition) -> BTreeSet<String> {
        self.users(key, During::At(position))
    }

    /// The users who must acknowledge a message that was emitted at a position: members at that time, less those who have left
    /// since. Who left one target and stayed in another of its audience is still awaited. Who has left and joined again is not.
    pub fn awaited<'a>(
        &self,
        audience: impl IntoIterator<Item = &'a AudienceKey>,
        emitted_at: LogPosition,
    ) -> BTreeSet<String> {
        audience.into_iter().flat_map(|key| self.users(key, During::Since(emitted_at))).collect()
    }

    /// Whether a user sees the messages of an audience now.
    pub fn is_member_now<'a>(&self, audience: impl IntoIterator<Item = &'a AudienceKey>, user: &str) -> bool {
        audience.into_iter().any(|key| self.users(key, NOW).contains(user))
    }

    fn users(&self, key: &AudienceKey, during: During) -> BTreeSet<String> {
        let users = self.within(key, during).into_iter().filter(|key| key.kind == USER);
        users.map(|user| user.target.clone()).collect()
    }

    fn contains_now(&self, whole: &AudienceKey, part: &AudienceKey) -> bool {
        self.within(whole, NOW).contains(part)
    }

    /// A target and all that it contains, directly or not.
    fn within<'a>(&'a self, key: &'a AudienceKey, during: During) -> BTreeSet<&'a AudienceKey> {
        let (mut found, mut left) = (BTreeSet::new(), vec![key]);
        while let Some(key) = left.pop() {
            if found.insert(key) {
                let parts = self.links.get(key).into_iter().flatten();
                left.extend(parts.filter(|(_, intervals)| is_in(intervals, during)).map(|(part, _)| part));
            }
        }
        found
    }

    fn advance(&mut self, position: LogPosition) -> Result<(), MembershipRefused> {
        if position < self.last {
            return Err(MembershipRefused::InThePast(position));
        }
        self.last = position;
        Ok(())
    }
}

fn is_in(intervals: &[Interval], during: During) -> bool {
    match during {
        During::At(position) => intervals.iter().any(|interval| interval.has(position)),
        During::Since(position) => intervals.last().is_some_and(|last| last.to.is_none() && last.has(position)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Tested = Result<(), MembershipRefused>;

    fn group(name: &str) -> AudienceKey {
        AudienceKey::new("GROUP", name)
    }

    fn awaited(memberships: &Memberships, key: &AudienceKey, emitted_at: LogPosition) -> Vec<String> {
        memberships.awaited([key], emitted_at).into_iter().collect()
    }

    #[test]
    fn who_left_is_not_awaited_and_who_joined_later_is_not_either() -> Tested {
        let mut memberships = Memberships::default();
        for (user, position) in [("ann", 1), ("bob", 2), ("cem", 8)] {
            memberships.join(&group("g"), &AudienceKey::user(user), position)?;
        }
        assert_eq!(awaited(&memberships, &group("g"), 5), ["ann", "bob"]);
        memberships.leave(&group("g"), &AudienceKey::user("bob"), 9)?;
        assert_eq!(awaited(&memberships, &group("g"), 5), ["ann"]);
        assert!(memberships.members_at(&group("g"), 5).contains("bob"));
        // Joined again: sees the message, and is not awaited.
        memberships.join(&group("g"), &AudienceKey::user("bob"), 10)?;
        assert_eq!(awaited(&memberships, &group("g"), 5), ["ann"]);
        assert!(memberships.is_member_now([&group("g")], "bob"));
        Ok(())
    }

    #[test]
    fn who_belongs_by_two_ways_is_awaited_until_both_have_ended() -> Tested {
        let (whole, one, other, ann) = (group("all"), group("one"), group("other"), AudienceKey::user("ann"));
        let mut memberships = Memberships::default();
        for (whole, part) in [(&whole, &one), (&whole, &other), (&one, &ann), (&other, &ann)] {
            assert!(memberships.join(whole, part, 1)?);
            assert!(!memberships.join(whole, part, 1)?);
        }
        assert!(memberships.leave(&one, &ann, 3)?);
        assert_eq!(awaited(&memberships, &whole, 2), ["ann"]);
        assert!(memberships.leave(&whole, &other, 4)?);
        assert!(!memberships.leave(&whole, &other, 4)?);
        assert!(awaited(&memberships, &whole, 2).is_empty());
        Ok(())
    }

    #[test]
    fn a_user_is_their_own_member() {
        let memberships = Memberships::default();
        assert_eq!(awaited(&memberships, &AudienceKey::user("ann"), 7), ["ann"]);
        assert!(awaited(&memberships, &group("nobody"), 7).is_empty());
    }

    #[test]
    fn a_target_that_contains_itself_is_refused() -> Tested {
        let (a, b, c) = (group("a"), group("b"), group("c"));
        let mut memberships = Memberships::default();
        memberships.join(&a, &b, 1)?;
        memberships.join(&b, &c, 2)?;
        for (whole, part) in [(&c, &a), (&b, &a), (&a, &a)] {
            assert_eq!(memberships.join(whole, part, 3), Err(MembershipRefused::Cycle(whole.clone())));
        }
        // What has ended does not count.
        memberships.leave(&a, &b, 3)?;
        memberships.join(&b, &a, 4)?;
        let ann = AudienceKey::user("ann");
        assert_eq!(memberships.join(&ann, &a, 3), Err(MembershipRefused::UserHasMembers(ann.clone())));
        assert_eq!(memberships.leave(&a, &b, 1), Err(MembershipRefused::InThePast(1)));
        Ok(())
    }
}
