//! Instances, as operators see and resolve them.

use axum::extract::{Request, State};
use relais_protocol::{
    Success,
    instance::{Instances, ResolveAnswer, ResolveRequest},
};

use crate::{
    App,
    admin::{Answer, answer},
    admin_guard::By,
    openapi::Refusals,
    path::Path,
};

/// The processes on the store
#[utoipa::path(get, path = "/admin/instances", operation_id = "listInstances",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "In the order of their names", body = Success<Instances>), Refusals))]
pub(crate) async fn list(State(app): State<App>) -> Answer<Instances> {
    answer(app.engine.instances().await?)
}

/// Decide what becomes of the tasks of an instance that died
///
/// For one whose crash policy is `refuse`: until then its tasks stay as they are, and no instance of its name begins.
#[utoipa::path(post, path = "/admin/instances/{instance}/resolve", operation_id = "resolveInstance",
    tag = "Operators", security(("admin" = []), ()),
    params(("instance" = String, Path, description = "The instance's name")),
    request_body = ResolveRequest,
    responses((status = 200, description = "What was done", body = Success<ResolveAnswer>), Refusals))]
pub(crate) async fn resolve(
    State(app): State<App>,
    By(operator): By,
    Path(instance): Path<String>,
    request: Request,
) -> Answer<ResolveAnswer> {
    let ResolveRequest { decision } = app.json(request).await?;
    answer(operator.resolve_instance(&instance, decision).await?)
}
