//! One service: how it does, who shares it, its limits, what it takes and how it is called.

use axum::{extract::Path, http::HeaderMap};
use maud::{Markup, html};
use relais_engine::OperatorRole;
use relais_protocol::admin::{LimitsChange, ServiceState, TransportName};

use super::{clock, done, flash};
use crate::{
    error::{Answer, Explained as _},
    form::{Fields, Query, segment},
    gate::{Sent, Visitor},
    json::pretty,
    layout::{Page, Part},
    search::quoted,
    show::{against, ago, at_work, badge, button, careful, number, search_address, search_link},
};

/// The page of a service.
pub(crate) async fn page(
    visitor: Visitor,
    Path(name): Path<String>,
    Query(query): Query,
    headers: HeaderMap,
) -> Answer {
    let (words, language, now) = (visitor.words(), visitor.taste.language, clock());
    let service = visitor.operator.engine().service_state(&name).await.or_explain(&visitor)?;
    let declared = &service.declaration;
    let paused = declared.paused == Some(true);
    let of = |status: &str| search_address(&format!("{} status:{status}", quoted(&format!("service:{name}"))));
    let main = html! {
        div.head {
            div {
                p.crumbs { a href="/ui/services" { (words.services) } }
                h1 { (name) @if paused { " " (badge("paused", words.paused)) } }
            }
            div.headtools { (actions(&visitor, &name, paused)) }
        }
        (flash(&visitor, &query))
        dl.tiles {
            div { dt { (words.waiting_tasks) } dd { a href=(of("pending")) { (against(language, service.pending, declared.capacity)) } } }
            div { dt { (words.oldest) } dd { (ago(&visitor, service.oldest_pending_date.as_deref(), now)) } }
            div { dt { (words.running) } dd { a href=(of("running")) { (at_work(language, service.in_progress, declared.max_running)) } } }
            div { dt { (words.later) } dd { (number(language, service.waiting)) } }
            div { dt { (words.success) } dd { a href=(of("success")) { (number(language, service.success)) } } }
            div { dt { (words.failure) } dd { a href=(of("failure")) { (number(language, service.failure)) } } }
        }
        div.columns {
            section.card aria-labelledby="limits" { h2 #limits { (words.limits) } (limits_form(&visitor, &service)) }
            section.card aria-labelledby="shares" { h2 #shares { (words.shares) } (shares(&visitor, &service)) }
        }
        section.card aria-labelledby="call" {
            h2 #call { (words.how_to_call) }
            pre.code tabindex="0" { (curl(&name, &headers, declared.json_schema.as_ref())) }
        }
        div.columns {
            @if let Some(schema) = &declared.json_schema {
                section.card aria-labelledby="schema" { h2 #schema { (words.schema) } pre.json tabindex="0" { (pretty(&schema.to_string(), &Default::default())) } }
            }
            section.card aria-labelledby="declared" { h2 #declared { (words.declared) }
                pre.json tabindex="0" { (pretty(&as_declared(&service), &Default::default())) } }
        }
    };
    Ok(Page::new(&name, Part::Services).live("tasks").show(&visitor, Some(now), &main))
}

fn as_declared(service: &ServiceState) -> String {
    let mut declared = service.declaration.clone();
    declared.json_schema = None;
    serde_json::to_string(&declared).unwrap_or_default()
}

fn actions(visitor: &Visitor, name: &str, paused: bool) -> Markup {
    let words = visitor.words();
    let base = format!("/ui/services/{}", segment(name));
    html! {
        @if visitor.operator.may(OperatorRole::Operator) {
            @if paused {
                (button(visitor, &format!("{base}/resume"), words.resume, "primary", &[]))
            } @else {
                (careful(visitor, &format!("{base}/pause"), words.pause, words.pause_question, &[]))
            }
        }
    }
}

fn limits_form(visitor: &Visitor, service: &ServiceState) -> Markup {
    let words = visitor.words();
    let declared = &service.declaration;
    let may = visitor.operator.may(OperatorRole::Operator);
    let brokered = declared.transport == Some(TransportName::Rabbitmq);
    let rate = declared.rate_limit.map(|rate| format!("{}/{}", rate.count, rate.per)).unwrap_or_default();
    let field = |name: &str, label: &str, value: Option<u32>| {
        let value = value.map(|value| value.to_string()).unwrap_or_default();
        html! {
            div.field { label for=(name) { (label) }
                input id=(name) name=(name) type="number" min="0" max="2147483647" inputmode="numeric" value=(value) placeholder=(words.no_limit) disabled[!may]; }
        }
    };
    html! {
        form.limits method="post" action=(format!("/ui/services/{}/limits", segment(&declared.service_name))) {
            input type="hidden" name="csrf" value=(visitor.csrf);
            input type="hidden" name="back" value=(visitor.taste.here);
            (field("capacity", words.limit_capacity, declared.capacity))
            @if brokered { (field("dispatchWindow", words.limit_window, declared.dispatch_window)) }
            (field("maxRunning", words.limit_running, declared.max_running))
            (field("maxRunningPerClient", words.limit_client, declared.max_running_per_client))
            div.field { label for="rateLimit" { (words.limit_rate) }
                input #rateLimit name="rateLimit" type="text" value=(rate) placeholder="100/1s" disabled[!may]; }
            @if may {
                button type="submit" { (words.save) }
                p.hint { (words.limits_hint) @if brokered { " " (words.limits_window_hint) } }
            }
        }
    }
}

fn shares(visitor: &Visitor, service: &ServiceState) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    html! {
        @if service.clients.is_empty() { p.muted { (words.no_shares) } } @else {
            table.dense {
                thead { tr { th scope="col" { (words.client) } th.right scope="col" { (words.waiting_tasks) } th.right scope="col" { (words.running) } } }
                tbody { @for client in &service.clients { tr {
                    th scope="row" { (search_link(&format!("{} {}", quoted(&format!("service:{}", service.declaration.service_name)), quoted(&format!("client:{}", client.client_id))), &client.client_id)) }
                    td.right.num { (number(language, client.pending)) }
                    td.right { (at_work(language, client.in_progress, client.max_running)) }
                } } }
            }
        }
    }
}

/// How to submit a task by hand, with an example body that the schema hints at.
fn curl(name: &str, headers: &HeaderMap, schema: Option<&serde_json::Value>) -> String {
    let host = headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or("localhost:8080");
    let scheme = match headers.get("x-forwarded-proto").and_then(|proto| proto.to_str().ok()) {
        Some("https") => "https",
        _ => "http",
    };
    let address = format!("{scheme}://{host}/v1/services/{}/tasks", segment(name));
    let body = example(schema, 0).to_string();
    format!(
        "curl -u CLIENT_ID:CLIENT_SECRET -H 'Content-Type: application/json' \\\n     \
         -d '{{\"body\": {}}}' {address}\n\n\
         curl -u CLIENT_ID:CLIENT_SECRET '{address}/TASK_ID?wait=30s'",
        body.replace('\'', "'\\''")
    )
}

/// Something that a schema may take: what it requires, with plain values.
fn example(schema: Option<&serde_json::Value>, depth: usize) -> serde_json::Value {
    use serde_json::{Value, json};
    let Some(schema) = schema.filter(|_| depth < 8) else { return json!({}) };
    for given in ["example", "default", "const"] {
        if let Some(value) = schema.get(given) {
            return value.clone();
        }
    }
    if let Some(Value::Array(values)) = schema.get("enum").or_else(|| schema.get("examples"))
        && let Some(first) = values.first()
    {
        return first.clone();
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => json!("…"),
        Some("number" | "integer") => schema.get("minimum").cloned().unwrap_or_else(|| json!(1)),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("null") => Value::Null,
        _ => {
            let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
            let names = required.iter().filter_map(Value::as_str);
            let member = |name: &str| {
                let property = schema.get("properties").and_then(|properties| properties.get(name));
                (name.to_owned(), example(property, depth + 1))
            };
            Value::Object(names.map(member).collect())
        }
    }
}

/// Pauses it.
pub(crate) async fn pause(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    visitor.operator.pause_service(&name, true).await.or_explain(&visitor)?;
    Ok(done(&fields, "paused", None))
}

/// Lets it go on.
pub(crate) async fn resume(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    visitor.operator.pause_service(&name, false).await.or_explain(&visitor)?;
    Ok(done(&fields, "resumed", None))
}

/// Changes its limits.
pub(crate) async fn limits(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    let change = read_limits(&fields);
    visitor.operator.change_limits(&name, change).await.or_explain(&visitor)?;
    Ok(done(&fields, "limits", None))
}

/// A field that is there and empty takes its limit away.
fn read_limits(fields: &Fields) -> LimitsChange {
    let number = |name: &str| fields.any(name).map(|text| text.trim().parse().unwrap_or(0));
    LimitsChange {
        capacity: number("capacity"),
        max_running: number("maxRunning"),
        max_running_per_client: number("maxRunningPerClient"),
        rate_limit: fields.any("rateLimit").map(str::to_owned),
        dispatch_window: number("dispatchWindow"),
    }
}
