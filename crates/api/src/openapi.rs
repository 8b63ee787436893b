//! The OpenAPI document: made from the descriptions beside the handlers, so that it says what the code does.

use std::{collections::BTreeMap, sync::LazyLock};

use axum::{Router, middleware::from_fn_with_state};
use relais_protocol::{ErrorNumber, Failure};
use utoipa::{
    IntoResponses, OpenApi, PartialSchema, ToSchema,
    openapi::{
        ContentBuilder, RefOr, ResponseBuilder,
        response::Response,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App, admin, admin_guard, admin_tasks, batches, broker, callbacks, captures, consumer, docs, event_bus, events,
    instances, notifications, operations, outboxes, schedules, worker,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Relais",
        description = "Takes work over HTTP, keeps it safe, hands it to workers, follows it to the end, and tells whoever waits.\n\nEvery answer is `{\"status\":\"success\",\"data\":…}` or `{\"status\":\"error\",\"error\":{\"number\":…,\"description\":…}}`. Dates are RFC 3339, UTC, with milliseconds. A trailing slash makes no difference.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    tags(
        (name = "Consumers", description = "Submit tasks and follow one's own. Basic credentials of a client with the role `consume` on the service."),
        (name = "Workers", description = "Take tasks and report on them. Basic credentials of a client with the role `work` on the service."),
        (name = "Notifications", description = "Emit messages to audiences and say who belongs to them (Basic credentials of a client with the rights), and receive them (a user's token or ticket)."),
        (name = "Operators", description = "Declare services, clients, authorizations, schedules, outboxes, captures, audiences and notification sources, look, and act. The admin token as bearer; without one configured, only from this machine."),
        (name = "Operations", description = "For probes and monitoring. No credentials."),
    ),
    components(schemas(Failure)),
)]
struct Document;

/// The refusals that any route may answer, all of one shape.
pub(crate) struct Refusals;

impl IntoResponses for Refusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut by_status: BTreeMap<u16, Vec<ErrorNumber>> = BTreeMap::new();
        for number in ErrorNumber::ALL {
            by_status.entry(number.status()).or_default().push(*number);
        }
        let one = |(status, numbers): (u16, Vec<ErrorNumber>)| {
            let said: Vec<String> = numbers.iter().map(|n| format!("{}: {}", n.number(), n.description())).collect();
            let content = ContentBuilder::new().schema(Some(Failure::schema_ref())).build();
            let response =
                ResponseBuilder::new().description(said.join(" · ")).content("application/json", content).build();
            (status.to_string(), RefOr::T(response))
        };
        by_status.into_iter().map(one).collect()
    }
}

trait SchemaRef {
    fn schema_ref() -> utoipa::openapi::RefOr<utoipa::openapi::Schema>;
}

impl<T: ToSchema + PartialSchema> SchemaRef for T {
    fn schema_ref() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::openapi::Ref::from_schema_name(T::name()).into()
    }
}

/// All described routes.
pub(crate) fn described(app: &App) -> Router<App> {
    let guarded = admin_routes().layer(from_fn_with_state(app.clone(), admin_guard::guard));
    // Its own refusal of methods, set here so that CORS is around it: browsers ask with a method that no route has.
    let user =
        notifications::user_routes().split_for_parts().0.method_not_allowed_fallback(crate::error::method_not_allowed);
    let others = open_routes().merge(notifications::client_routes()).merge(guarded).split_for_parts().0;
    others.merge(user.layer(notifications::cors(app)))
}

/// The document as it is served and committed.
pub fn document() -> String {
    as_text(&document_value())
}

/// The document and a page to read it. Made when somebody asks: few servers are ever asked, and it takes megabytes.
pub(crate) fn published() -> &'static Published {
    static PUBLISHED: LazyLock<Published> = LazyLock::new(|| {
        let value = document_value();
        Published { document: as_text(&value), page: docs::page(&value) }
    });
    &PUBLISHED
}

pub(crate) struct Published {
    pub document: String,
    pub page: String,
}

/// The document, for whoever renders it.
pub(crate) fn document_value() -> serde_json::Value {
    as_value(&whole())
}

fn whole() -> utoipa::openapi::OpenApi {
    let notifications = notifications::user_routes().merge(notifications::client_routes());
    let (_, mut document) = open_routes().merge(notifications).merge(admin_routes()).split_for_parts();
    complete(&mut document);
    document
}

fn as_value(document: &utoipa::openapi::OpenApi) -> serde_json::Value {
    let mut value = serde_json::to_value(document).unwrap_or_default();
    let numbers = ErrorNumber::ALL.iter().map(|number| {
        serde_json::json!({
            "number": number.number(), "status": number.status(), "description": number.description(),
            "cause": number.cause(), "remedy": number.remedy(),
        })
    });
    if let Some(fields) = value.as_object_mut() {
        fields.insert("x-error-numbers".to_owned(), numbers.collect());
    }
    open_what_is_extended(&mut value["components"]["schemas"]);
    value
}

/// What is sent has no other fields than its own; where an answer has more besides, the same schema would forbid them. There its
/// fields stand for it.
fn open_what_is_extended(schemas: &mut serde_json::Value) {
    let closed = schemas.clone();
    open_within(schemas, &closed);
}

fn open_within(schema: &mut serde_json::Value, closed: &serde_json::Value) {
    for part in schema.get_mut("allOf").and_then(serde_json::Value::as_array_mut).into_iter().flatten() {
        let name = part["$ref"].as_str().and_then(|name| name.strip_prefix("#/components/schemas/"));
        let extended = name.map(|name| &closed[name]).filter(|schema| schema["additionalProperties"] == false);
        let Some(extended) = extended.and_then(serde_json::Value::as_object) else { continue };
        let mut fields = extended.clone();
        fields.remove("additionalProperties");
        *part = fields.into();
    }
    match schema {
        serde_json::Value::Object(fields) => fields.values_mut().for_each(|field| open_within(field, closed)),
        serde_json::Value::Array(parts) => parts.iter_mut().for_each(|part| open_within(part, closed)),
        _ => {}
    }
}

fn as_text(document: &serde_json::Value) -> String {
    let mut text = serde_json::to_string_pretty(document).unwrap_or_default();
    text.push('\n');
    text
}

fn complete(document: &mut utoipa::openapi::OpenApi) {
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    let components = document.components.get_or_insert_default();
    let scheme = |scheme, description: &str| {
        SecurityScheme::Http(HttpBuilder::new().scheme(scheme).description(Some(description)).build())
    };
    components.add_security_scheme("basic", scheme(HttpAuthScheme::Basic, "`client-id:client-secret`"));
    components.add_security_scheme("user", scheme(HttpAuthScheme::Bearer, "The token or the ticket of a user"));
    components.add_security_scheme("admin", scheme(HttpAuthScheme::Bearer, "The admin token"));
}

fn open_routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(consumer::list_services))
        .routes(routes!(consumer::show_service))
        .routes(routes!(consumer::show_backlog))
        .routes(routes!(consumer::submit, consumer::list_tasks))
        .routes(routes!(consumer::submit_batch))
        .routes(routes!(consumer::show_task, consumer::cancel_task))
        .routes(routes!(consumer::retry_task))
        .routes(routes!(batches::make, batches::list))
        .routes(routes!(batches::show))
        .routes(routes!(batches::tasks))
        .routes(routes!(batches::close))
        .routes(routes!(batches::cancel))
        .routes(routes!(events::follow_task))
        .routes(routes!(callbacks::of_task))
        .routes(routes!(callbacks::own_signing_secrets))
        .routes(routes!(worker::claim))
        .routes(routes!(worker::report))
        .routes(routes!(worker::heartbeat))
        .routes(routes!(worker::give_back))
        .routes(routes!(operations::healthz))
        .routes(routes!(operations::readyz))
        .routes(routes!(operations::render_metrics))
}

fn admin_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(admin::list_services))
        .routes(routes!(admin::show_service, admin::put_service, admin::delete_service))
        .routes(routes!(admin::pause_service))
        .routes(routes!(admin::resume_service))
        .routes(routes!(admin::change_limits))
        .routes(routes!(admin::list_clients))
        .routes(routes!(admin::put_client, admin::delete_client))
        .routes(routes!(admin::rotate_secret))
        .routes(routes!(admin::list_authorizations))
        .routes(routes!(admin::put_authorization, admin::delete_authorization))
        .routes(routes!(instances::list))
        .routes(routes!(instances::resolve))
        .routes(routes!(outboxes::list))
        .routes(routes!(outboxes::show, outboxes::put, outboxes::delete))
        .routes(routes!(outboxes::pause))
        .routes(routes!(outboxes::resume))
        .routes(routes!(outboxes::list_parked))
        .routes(routes!(outboxes::retry_parked))
        .routes(routes!(outboxes::skip_parked))
        .routes(routes!(captures::list))
        .routes(routes!(captures::show, captures::put, captures::delete))
        .routes(routes!(captures::pause))
        .routes(routes!(captures::resume))
        .routes(routes!(captures::snapshot))
        .routes(routes!(schedules::list))
        .routes(routes!(schedules::show, schedules::put, schedules::delete))
        .routes(routes!(schedules::pause))
        .routes(routes!(schedules::resume))
        .routes(routes!(schedules::run))
        .routes(routes!(schedules::next))
        .routes(routes!(admin::apply))
        .routes(routes!(admin::export))
        .routes(routes!(admin_tasks::list_tasks))
        .routes(routes!(admin_tasks::show_task, admin_tasks::cancel_task))
        .routes(routes!(admin_tasks::retry_tasks))
        .routes(routes!(admin_tasks::cancel_tasks))
        .routes(routes!(admin_tasks::retry_task))
        .routes(routes!(admin_tasks::list_workers))
        .routes(routes!(admin_tasks::audit))
        .routes(routes!(batches::admin_list))
        .routes(routes!(batches::admin_show))
        .routes(routes!(batches::admin_close))
        .routes(routes!(batches::admin_cancel))
        .routes(routes!(callbacks::client_signing_secrets, callbacks::rotate_signing_secret))
        .routes(routes!(callbacks::list))
        .routes(routes!(callbacks::redeliver_failed))
        .routes(routes!(callbacks::show))
        .routes(routes!(callbacks::redeliver))
        .routes(routes!(broker::show))
        .routes(routes!(broker::letters))
        .routes(routes!(broker::letter))
        .routes(routes!(broker::replay))
        .routes(routes!(broker::discard))
        .routes(routes!(broker::redispatch))
        .routes(routes!(admin::purge))
        .routes(routes!(event_bus::stats))
        .routes(routes!(event_bus::channels))
        .routes(routes!(event_bus::subscriptions))
        .routes(routes!(event_bus::publish))
        .routes(routes!(event_bus::follow))
        .merge(notifications::admin_routes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What the name of a method in a generated client may begin with.
    const VERBS: &str = "apply cancel change check claim close create delete discard export follow get list pause publish \
                         purge put redeliver redispatch replay report request resolve resume retry return rotate run send skip submit";

    #[test]
    fn every_operation_has_a_name_of_its_own_that_begins_with_a_verb() {
        let document = document_value();
        let paths = document["paths"].as_object().unwrap();
        let operations: Vec<&serde_json::Value> =
            paths.values().flat_map(|methods| methods.as_object().unwrap().values()).collect();
        let names: Vec<&str> = operations.iter().map(|one| one["operationId"].as_str().unwrap()).collect();
        let distinct: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(distinct.len(), operations.len(), "a name is used twice: {names:?}");
        for name in names {
            let after_verb = |verb: &str| {
                name.strip_prefix(verb).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
            };
            let verb = VERBS.split(' ').any(after_verb);
            assert!(verb && name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
        }
    }
}
