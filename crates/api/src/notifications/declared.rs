//! Routes of operators for declared audiences.

use axum::extract::{RawQuery, Request, State};
use relais_engine::ApplyOptions;
use relais_protocol::{
    ErrorNumber, Success,
    admin::{ApplyReport, Declaration},
    audience::{AudienceDeclaration, AudienceState, AudienceStates},
};

use crate::{
    App,
    admin::{Answer, answer, same},
    admin_guard::By,
    error::ApiError,
    openapi::Refusals,
    path::Path,
    query::Query,
};

/// The declared audiences
///
/// Types, and targets whose members are declared. Targets whose members were set with the API are not among them.
#[utoipa::path(get, path = "/admin/audiences", operation_id = "listAudiences",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "In the order of their types and targets", body = Success<AudienceStates>), Refusals))]
pub(crate) async fn list(State(app): State<App>) -> Answer<AudienceStates> {
    answer(AudienceStates { audiences: app.engine.audience_states().await? })
}

/// A declared type of audience
#[utoipa::path(get, path = "/admin/audiences/{type}", operation_id = "getAudienceType",
    tag = "Operators", security(("admin" = []), ()),
    params(("type" = String, Path, description = "The type of audience")),
    responses((status = 200, description = "The type", body = Success<AudienceState>), Refusals))]
pub(crate) async fn show_type(State(app): State<App>, Path(kind): Path<String>) -> Answer<AudienceState> {
    answer(app.engine.audience_state(&kind, None).await?)
}

/// Declare a type of audience
#[utoipa::path(put, path = "/admin/audiences/{type}", operation_id = "putAudienceType",
    tag = "Operators", security(("admin" = []), ()),
    params(("type" = String, Path, description = "The type of audience")),
    request_body = AudienceDeclaration,
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn put_type(
    State(app): State<App>,
    By(operator): By,
    Path(kind): Path<String>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Answer<ApplyReport> {
    Query::parse(query.as_deref(), &[])?;
    let declared: AudienceDeclaration = app.json(request).await?;
    same(&kind, &declared.kind, "/type")?;
    if declared.target.is_some() {
        return Err(ApiError::at(ErrorNumber::InvalidRequest, "/target", "a target has an address of its own"));
    }
    let declaration = Declaration { audiences: vec![declared], ..Declaration::default() };
    answer(operator.apply_with(declaration, ApplyOptions::default()).await?)
}

/// Declare a type of audience no more
///
/// Targets of it that are declared stay.
#[utoipa::path(delete, path = "/admin/audiences/{type}", operation_id = "deleteAudienceType",
    tag = "Operators", security(("admin" = []), ()),
    params(("type" = String, Path, description = "The type of audience")),
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn delete_type(By(operator): By, Path(kind): Path<String>) -> Answer<ApplyReport> {
    answer(operator.delete_audience(&kind, None).await?)
}

/// A declared audience, with its members
#[utoipa::path(get, path = "/admin/audiences/{type}/{target}", operation_id = "getAudience",
    tag = "Operators", security(("admin" = []), ()),
    params(("type" = String, Path, description = "The type of audience"), ("target" = String, Path, description = "The target")),
    responses((status = 200, description = "The audience", body = Success<AudienceState>), Refusals))]
pub(crate) async fn show(
    State(app): State<App>,
    Path((kind, target)): Path<(String, String)>,
) -> Answer<AudienceState> {
    answer(app.engine.audience_state(&kind, Some(&target)).await?)
}

/// Declare an audience
///
/// It has exactly these members from now on, and nobody else can change them.
#[utoipa::path(put, path = "/admin/audiences/{type}/{target}", operation_id = "putAudience",
    tag = "Operators", security(("admin" = []), ()),
    params(("type" = String, Path, description = "The type of audience"), ("target" = String, Path, description = "The target")),
    request_body = AudienceDeclaration,
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn put(
    State(app): State<App>,
    By(operator): By,
    Path((kind, target)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Answer<ApplyReport> {
    Query::parse(query.as_deref(), &[])?;
    let declared: AudienceDeclaration = app.json(request).await?;
    same(&kind, &declared.kind, "/type")?;
    same(&target, declared.target.as_deref().unwrap_or_default(), "/target")?;
    let declaration = Declaration { audiences: vec![declared], ..Declaration::default() };
    answer(operator.apply_with(declaration, ApplyOptions::default()).await?)
}

/// Declare an audience no more
///
/// It loses the members that were declared. From then on the API can give it members again.
#[utoipa::path(delete, path = "/admin/audiences/{type}/{target}", operation_id = "deleteAudience",
    tag = "Operators", security(("admin" = []), ()),
    params(("type" = String, Path, description = "The type of audience"), ("target" = String, Path, description = "The target")),
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn delete(By(operator): By, Path((kind, target)): Path<(String, String)>) -> Answer<ApplyReport> {
    answer(operator.delete_audience(&kind, Some(&target)).await?)
}
