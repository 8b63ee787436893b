//! Routes of operators: declare, look, act. The same model as a declaration file and the command line.

use axum::{
    Json,
    extract::{RawQuery, Request, State},
};
use relais_engine::{ApplyOptions, RelayCheck};
use relais_protocol::{
    ErrorNumber, Success,
    admin::{
        ApplyReport, AuthorizationDeclaration, AuthorizationStates, ClientDeclaration, ClientSecret, ClientStates,
        Declaration, LimitsChange, PurgeAnswer, PurgeRequest, ServiceDeclaration, ServiceState, ServiceStates,
    },
};

use crate::{App, admin_guard::By, error::ApiError, openapi::Refusals, path::Path, query::Query};

pub(crate) type Answer<T> = Result<Json<Success<T>>, ApiError>;

pub(crate) fn answer<T>(data: T) -> Answer<T> {
    Ok(Json(Success::new(data)))
}

/// The name in the address and the one in the body must be the same.
pub(crate) fn same(path: &str, body: &str, field: &str) -> Result<(), ApiError> {
    if path == body {
        return Ok(());
    }
    Err(ApiError::at(ErrorNumber::InvalidDeclaration, field, format!("is {body:?}, but the address says {path:?}")))
}

/// The services with their counters
#[utoipa::path(get, path = "/admin/services", operation_id = "listServiceStates",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "In the order of their names", body = Success<ServiceStates>), Refusals))]
pub(crate) async fn list_services(State(app): State<App>) -> Answer<ServiceStates> {
    answer(ServiceStates { services: app.engine.service_states().await? })
}

/// One service with its counters
#[utoipa::path(get, path = "/admin/services/{service}", operation_id = "getServiceState",
    tag = "Operators", security(("admin" = []), ()),
    params(("service" = String, Path, description = "The service's name")),
    responses((status = 200, description = "The service", body = Success<ServiceState>), Refusals))]
pub(crate) async fn show_service(State(app): State<App>, Path(service): Path<String>) -> Answer<ServiceState> {
    answer(app.engine.service_state(&service).await?)
}

/// Declare a service
///
/// Creates it, or makes it like this: what is absent gets its default, but for `paused`.
#[utoipa::path(put, path = "/admin/services/{service}", operation_id = "putService",
    tag = "Operators", security(("admin" = []), ()),
    params(("service" = String, Path, description = "The service's name")),
    request_body = ServiceDeclaration,
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn put_service(
    State(app): State<App>,
    By(operator): By,
    Path(service): Path<String>,
    request: Request,
) -> Answer<ApplyReport> {
    let declared: ServiceDeclaration = app.json(request).await?;
    same(&service, &declared.service_name, "/serviceName")?;
    let declaration = Declaration { services: vec![declared], ..Declaration::default() };
    answer(operator.apply(declaration, false, false).await?)
}

/// Remove a service
///
/// With its authorizations. Refused while it has tasks that are not finished; those that are stay until they are purged.
#[utoipa::path(delete, path = "/admin/services/{service}", operation_id = "deleteService",
    tag = "Operators", security(("admin" = []), ()),
    params(("service" = String, Path, description = "The service's name")),
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn delete_service(By(operator): By, Path(service): Path<String>) -> Answer<ApplyReport> {
    answer(operator.delete_service(&service).await?)
}

/// Pause a service
///
/// Tasks are still taken in, but not handed out. Running ones go on.
#[utoipa::path(post, path = "/admin/services/{service}/pause", operation_id = "pauseService",
    tag = "Operators", security(("admin" = []), ()),
    params(("service" = String, Path, description = "The service's name")),
    responses((status = 200, description = "The service", body = Success<ServiceState>), Refusals))]
pub(crate) async fn pause_service(By(operator): By, Path(service): Path<String>) -> Answer<ServiceState> {
    answer(operator.pause_service(&service, true).await?)
}

/// Let a service go on
#[utoipa::path(post, path = "/admin/services/{service}/resume", operation_id = "resumeService",
    tag = "Operators", security(("admin" = []), ()),
    params(("service" = String, Path, description = "The service's name")),
    responses((status = 200, description = "The service", body = Success<ServiceState>), Refusals))]
pub(crate) async fn resume_service(By(operator): By, Path(service): Path<String>) -> Answer<ServiceState> {
    answer(operator.pause_service(&service, false).await?)
}

/// Change a service's limits
///
/// Those that are named, and nothing else of it.
#[utoipa::path(post, path = "/admin/services/{service}/limits", operation_id = "changeServiceLimits",
    tag = "Operators", security(("admin" = []), ()),
    params(("service" = String, Path, description = "The service's name")),
    request_body = LimitsChange,
    responses((status = 200, description = "The service", body = Success<ServiceState>), Refusals))]
pub(crate) async fn change_limits(
    State(app): State<App>,
    By(operator): By,
    Path(service): Path<String>,
    request: Request,
) -> Answer<ServiceState> {
    let change: LimitsChange = app.json(request).await?;
    answer(operator.change_limits(&service, change).await?)
}

/// The clients
#[utoipa::path(get, path = "/admin/clients", operation_id = "listClients",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "In the order of their names", body = Success<ClientStates>), Refusals))]
pub(crate) async fn list_clients(State(app): State<App>) -> Answer<ClientStates> {
    answer(ClientStates { clients: app.engine.client_states().await? })
}

/// Declare a client
///
/// A new client without a `clientSecret` gets one that is shown in this answer, once.
#[utoipa::path(put, path = "/admin/clients/{clientId}", operation_id = "putClient",
    tag = "Operators", security(("admin" = []), ()),
    params(("clientId" = String, Path, description = "The client's name")),
    request_body = ClientDeclaration,
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn put_client(
    State(app): State<App>,
    By(operator): By,
    Path(client_id): Path<String>,
    request: Request,
) -> Answer<ApplyReport> {
    let declared: ClientDeclaration = app.json(request).await?;
    same(&client_id, &declared.client_id, "/clientId")?;
    let declaration = Declaration { clients: vec![declared], ..Declaration::default() };
    answer(operator.apply(declaration, false, false).await?)
}

/// Remove a client
///
/// With its authorizations. Its tasks stay until they are purged.
#[utoipa::path(delete, path = "/admin/clients/{clientId}", operation_id = "deleteClient",
    tag = "Operators", security(("admin" = []), ()),
    params(("clientId" = String, Path, description = "The client's name")),
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn delete_client(By(operator): By, Path(client_id): Path<String>) -> Answer<ApplyReport> {
    answer(operator.delete_client(&client_id).await?)
}

/// Give a client another secret
///
/// The old one is worth nothing from now on.
#[utoipa::path(post, path = "/admin/clients/{clientId}/secret", operation_id = "rotateClientSecret",
    tag = "Operators", security(("admin" = []), ()),
    params(("clientId" = String, Path, description = "The client's name")),
    responses((status = 200, description = "The secret, shown this once", body = Success<ClientSecret>), Refusals))]
pub(crate) async fn rotate_secret(By(operator): By, Path(client_id): Path<String>) -> Answer<ClientSecret> {
    answer(operator.rotate_secret(&client_id).await?)
}

/// Who may do what
#[utoipa::path(get, path = "/admin/authorizations", operation_id = "listAuthorizations",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("clientId" = Option<String>, Query, description = "Only of this client"),
        ("service" = Option<String>, Query, description = "Only on this service"),
    ),
    responses((status = 200, description = "In the order of clients, then services", body = Success<AuthorizationStates>), Refusals))]
pub(crate) async fn list_authorizations(
    State(app): State<App>,
    RawQuery(query): RawQuery,
) -> Answer<AuthorizationStates> {
    let query = Query::parse(query.as_deref(), &["clientId", "service"])?;
    let (client, service) = (query.get("clientId"), query.get("service"));
    let mut authorizations = app.engine.declaration().await?.authorizations;
    authorizations.retain(|authorization| {
        client.is_none_or(|id| id == authorization.client_id)
            && service.is_none_or(|name| name == authorization.service_name)
    });
    answer(AuthorizationStates { authorizations })
}

/// Let a client use a service
#[utoipa::path(put, path = "/admin/authorizations/{clientId}/{service}", operation_id = "putAuthorization",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("clientId" = String, Path, description = "The client's name"),
        ("service" = String, Path, description = "The service's name"),
    ),
    request_body = AuthorizationDeclaration,
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn put_authorization(
    State(app): State<App>,
    By(operator): By,
    Path((client_id, service)): Path<(String, String)>,
    request: Request,
) -> Answer<ApplyReport> {
    let declared: AuthorizationDeclaration = app.json(request).await?;
    same(&client_id, &declared.client_id, "/clientId")?;
    same(&service, &declared.service_name, "/serviceName")?;
    let declaration = Declaration { authorizations: vec![declared], ..Declaration::default() };
    answer(operator.apply(declaration, false, false).await?)
}

/// Take a service away from a client
#[utoipa::path(delete, path = "/admin/authorizations/{clientId}/{service}", operation_id = "deleteAuthorization",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("clientId" = String, Path, description = "The client's name"),
        ("service" = String, Path, description = "The service's name"),
    ),
    responses((status = 200, description = "What was done", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn delete_authorization(
    By(operator): By,
    Path((client_id, service)): Path<(String, String)>,
) -> Answer<ApplyReport> {
    answer(operator.delete_authorization(&client_id, &service).await?)
}

/// Apply a declaration
///
/// All of it or nothing. With `dryRun`, only tells what would be done. With `prune`, what it does not name is removed.
#[utoipa::path(post, path = "/admin/apply", operation_id = "applyDeclaration",
    tag = "Operators", security(("admin" = []), ()),
    params(
        ("dryRun" = Option<bool>, Query, description = "Only tell what would be done"),
        ("prune" = Option<bool>, Query, description = "Remove what the declaration does not name"),
        ("check" = Option<bool>, Query,
            description = "Whether the databases and sinks of outboxes and captures are asked; `true` if absent"),
    ),
    request_body = Declaration,
    responses((status = 200, description = "What was done, or would be", body = Success<ApplyReport>), Refusals))]
pub(crate) async fn apply(
    State(app): State<App>,
    By(operator): By,
    RawQuery(query): RawQuery,
    request: Request,
) -> Answer<ApplyReport> {
    let query = Query::parse(query.as_deref(), &["dryRun", "prune", "check"])?;
    let (dry_run, prune) = (query.boolean("dryRun")?, query.boolean("prune")?);
    let options = ApplyOptions { prune, dry_run, check: relay_check(&query)? };
    let declaration: Declaration = app.json(request).await?;
    answer(operator.apply_with(declaration, options).await?)
}

/// How far outboxes and captures are checked before they are stored.
pub(crate) fn relay_check(query: &Query) -> Result<RelayCheck, ApiError> {
    let checked = query.get("check").is_none() || query.boolean("check")?;
    Ok(if checked { RelayCheck::Whole } else { RelayCheck::Declaration })
}

/// Everything that is declared
///
/// As a declaration file would say it, without secrets.
#[utoipa::path(get, path = "/admin/declaration", operation_id = "exportDeclaration",
    tag = "Operators", security(("admin" = []), ()),
    responses((status = 200, description = "The declaration", body = Success<Declaration>), Refusals))]
pub(crate) async fn export(State(app): State<App>) -> Answer<Declaration> {
    answer(app.engine.declaration().await?)
}

/// Purge now
///
/// Removes what is older than its service, or the server, keeps. With `dryRun`, only counts.
#[utoipa::path(post, path = "/admin/purge", operation_id = "purgeTasks",
    tag = "Operators", security(("admin" = []), ()),
    request_body = PurgeRequest,
    responses((status = 200, description = "What was removed, or would be", body = Success<PurgeAnswer>), Refusals))]
pub(crate) async fn purge(State(app): State<App>, By(operator): By, request: Request) -> Answer<PurgeAnswer> {
    let asked: PurgeRequest = app.json(request).await?;
    answer(operator.purge(asked.dry_run).await?)
}
