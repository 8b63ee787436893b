//! The shape of every answer: `{"status":"success","data":…}` or `{"status":"error","error":{…}}`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ErrorNumber;

/// An answer that gives what was asked for.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Success<T> {
    /// Always `success`.
    #[schema(pattern = "^success$", example = "success")]
    pub status: String,
    /// What was asked for.
    pub data: T,
}

impl<T> Success<T> {
    /// Wraps what was asked for.
    pub fn new(data: T) -> Self {
        Self { status: "success".to_owned(), data }
    }
}

/// One thing that is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// Where, as a JSON pointer into the request; empty for the whole of it.
    pub path: String,
    /// What is wrong there.
    pub message: String,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// A number that stands for this kind of refusal, for programs.
    #[schema(example = 404001)]
    pub number: u32,
    /// The same, for people.
    #[schema(example = "Service not found.")]
    pub description: String,
    /// What exactly is wrong, where that helps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<ErrorDetail>,
}

/// An answer that refuses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// Always `error`.
    #[schema(pattern = "^error$", example = "error")]
    pub status: String,
    /// Why.
    pub error: ErrorBody,
}

impl Failure {
    /// A refusal with its number's own description.
    pub fn new(number: ErrorNumber, details: Vec<ErrorDetail>) -> Self {
        Self {
            status: "error".to_owned(),
            error: ErrorBody { number: number.number(), description: number.description().to_owned(), details },
        }
    }
}
