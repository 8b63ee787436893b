//! Audiences, as operators declare and are shown them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An audience: a type of its own, or a target with its members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AudienceDeclaration {
    /// The type: one that is always there (`GROUP`, `ROLE`, `STRUCTURE`, `FORMATION`), or one of your own, which is known
    /// from now on. Types and targets have 1 to 200 bytes and no control characters.
    #[serde(rename = "type")]
    #[schema(min_length = 1, max_length = 200, example = "GROUP")]
    pub kind: String,
    /// The target, whose members the declaration alone decides from now on. Default: only the type is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200, example = "teachers")]
    pub target: Option<String>,
    /// The members of the target: users, and other targets with all their members; at most 10,000. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 10000)]
    pub members: Vec<MemberDeclaration>,
}

/// A member of a target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberDeclaration {
    /// The type of the member. Default: `USER`.
    #[serde(rename = "type", default = "user", skip_serializing_if = "is_user")]
    #[schema(example = "USER")]
    pub kind: String,
    /// The user, or the target.
    #[schema(min_length = 1, max_length = 200, example = "ann")]
    pub target: String,
}

fn user() -> String {
    "USER".to_owned()
}

fn is_user(kind: &str) -> bool {
    kind == "USER"
}

/// A declared audience, as operators see it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AudienceState {
    /// As it is declared. In lists without its members.
    #[serde(flatten)]
    pub declaration: AudienceDeclaration,
    /// How many members are declared.
    pub declared_members: usize,
    /// Whether its members are to be removed, and then the audience itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removing: bool,
    /// Why its members are not those that are declared, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The declared audiences.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AudienceStates {
    /// In the order of their types and targets.
    pub audiences: Vec<AudienceState>,
}
