//! Declared audiences: what the store keeps of them, and its port.
//!
//! Only what is declared is here. Who belongs to a target, the log of notifications knows; whoever declares brings the two
//! together.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::StoreError;

/// The types of audience that are always there.
pub const KNOWN_AUDIENCE_TYPES: [&str; 5] = ["USER", "GROUP", "ROLE", "STRUCTURE", "FORMATION"];

/// A declared member of a target: a user, or another target with all its members.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeclaredMember {
    /// `USER`, or another type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The user, or the target.
    pub target: String,
}

/// What is declared: a type of audience, or a target of one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeclaredAudience {
    /// The type.
    pub kind: String,
    /// The target; none for the type itself.
    pub target: Option<String>,
}

/// A declared audience, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AudienceRecord {
    /// What is declared.
    pub audience: DeclaredAudience,
    /// The members of a target, in the order of their names.
    pub members: Vec<DeclaredMember>,
    /// It is declared no more, and its members have still to be removed.
    pub gone: bool,
}

/// A change of what is declared of audiences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AudienceChange {
    /// Declares a type, or a target with exactly these members.
    Put {
        /// What is declared.
        audience: DeclaredAudience,
        /// The members of a target.
        members: Vec<DeclaredMember>,
    },
    /// Declares it no more. A target stays as one that is gone until [`AudienceDeclarations::forget_audience`].
    Delete(DeclaredAudience),
}

/// What is declared of audiences. [`crate::DeclarationStore::declare`] changes it.
#[async_trait]
pub trait AudienceDeclarations: Send + Sync + 'static {
    /// All of them, in the order of their types and targets; those that are gone as well.
    async fn list_audiences(&self) -> Result<Vec<AudienceRecord>, StoreError>;

    /// Forgets a target that is gone. One that is declared again stays.
    async fn forget_audience(&self, audience: &DeclaredAudience) -> Result<(), StoreError>;
}
