//! Tests of the whole page: what hostile and odd documents make of it.

use std::collections::BTreeSet;

use serde_json::json;

use super::*;

fn sample() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Relais", "version": "1.2.3", "description": "Tasks.\n\nSent to `workers`." },
        "tags": [{ "name": "Consumer", "description": "Submit and follow." }],
        "x-error-numbers": [{
            "number": 404002, "status": 404, "description": "Task not found.",
            "cause": "It was purged.", "remedy": "Raise `purge.finished`.",
        }],
        "paths": {
            "/v1/tasks": {
                "get": { "tags": ["Consumer"], "responses": { "200": { "description": "A page." } } },
                "post": {
                    "tags": ["Consumer"],
                    "summary": "Submit a task",
                    "parameters": [{ "name": "Idempotency-Key", "in": "header", "schema": { "type": "string", "maxLength": 200 } }],
                    "requestBody": { "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Task" } } } },
                    "responses": {
                        "201": {
                            "description": "Taken.",
                            "headers": { "Idempotency-Replayed": { "description": "Whether it was there.", "schema": { "type": "boolean" } } },
                            "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Task" } } },
                        },
                        "404": { "$ref": "#/components/responses/NotFound" },
                    },
                },
            },
            "/v1/tasks/{taskId}": { "delete": { "responses": {} } },
            "/admin/tasks": { "get": { "tags": ["Admin"] } },
        },
        "components": {
            "responses": { "NotFound": {
                "description": "No such task.",
                "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Failure" } } },
            } },
            "schemas": {
                "Failure": { "oneOf": [{ "type": "string", "description": "A word." }, { "$ref": "#/components/schemas/Task" }] },
                "Task": {
                    "type": "object",
                    "required": ["body"],
                    "properties": {
                        "body": { "type": "object" },
                        "parent": { "oneOf": [{ "type": "null" }, { "$ref": "#/components/schemas/Task", "description": "Where it comes from." }] },
                    },
                },
            },
        },
    })
}

/// What stands behind each `name="` in the page.
fn attributes<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let opening = format!(" {name}=\"");
    page.split(&opening).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
fn every_operation_is_there_once() {
    let page = page(&sample());
    let ids = attributes(&page, "id");
    for id in ["get-/v1/tasks", "post-/v1/tasks", "delete-/v1/tasks/:taskId", "get-/admin/tasks"] {
        assert_eq!(ids.iter().filter(|other| **other == id).count(), 1, "{id}");
    }
    assert_eq!(page.matches("<section class=\"operation\"").count(), 4);
}

#[test]
fn every_link_within_the_page_leads_somewhere() {
    let page = page(&sample());
    let ids = attributes(&page, "id");
    let distinct: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(distinct.len(), ids.len(), "an id is used twice: {ids:?}");
    for link in attributes(&page, "href") {
        assert!(link == "/openapi.json" || distinct.contains(link.trim_start_matches('#')), "{link}");
    }
}

#[test]
fn what_the_document_says_is_shown() {
    let page = page(&sample());
    for shown in [
        "<h1>Relais <small>1.2.3</small></h1>\n<p>Tasks.</p>\n<p>Sent to <code>workers</code>.</p>",
        "<td><code id=\"error-404002\">404002</code></td><td>404</td><td><p class=\"description\">Task not found.</p>",
        "<p class=\"cause\">It was purged.</p><p class=\"remedy\">Raise <code>purge.finished</code>.</p></td>",
        "<h2>Consumer</h2>\n<p>Submit and follow.</p>",
        "<p class=\"summary\">Submit a task</p>",
        "At most 200 characters.",
        "Where it comes from.",
        "<code>Idempotency-Replayed</code>",
        "<summary>Refusals <span>404</span></summary>",
        "No such task.",
        "-d &#39;{&quot;body&quot;:{}}&#39;",
    ] {
        assert!(page.contains(shown), "{shown} is not in\n{page}");
    }
}

/// Every text of a document, names of members aside where OpenAPI gives them a meaning.
fn poison(value: &mut Value, evil: &str) {
    match value {
        Value::String(text) if !text.starts_with("#/") => text.push_str(evil),
        Value::Array(list) => list.iter_mut().for_each(|one| poison(one, evil)),
        Value::Object(members) => members.values_mut().for_each(|one| poison(one, evil)),
        _ => {}
    }
}

#[test]
fn nothing_in_the_document_becomes_markup() {
    let evil = "\"'><script onload=x>`</style>";
    let mut openapi = sample();
    poison(&mut openapi, evil);
    let schemas = openapi["components"]["schemas"].as_object_mut().unwrap();
    schemas
        .insert(evil.to_owned(), json!({ "properties": { evil: { "$ref": format!("#/{evil}"), "pattern": evil } } }));
    let paths = openapi["paths"].as_object_mut().unwrap();
    paths.insert(
        format!("/{evil}"),
        json!({ "get": { "responses": { evil: { "content": { evil: {} }, "headers": { evil: {} } } } } }),
    );
    let page = page(&openapi);
    assert!(!page.contains("<script"), "{page}");
    assert_eq!(page.matches("</style>").count(), 1);
    assert!(attributes(&page, "onload").is_empty());
}

#[test]
fn the_page_needs_no_script_and_fetches_nothing() {
    let page = page(&sample());
    for absent in ["<script", "<link", "<img", "src=", "@import", "url(", " style=\"", "javascript:"] {
        assert!(!page.contains(absent), "{absent}");
    }
}

#[test]
fn an_empty_document_is_a_page_too() {
    assert!(page(&Value::Null).ends_with("</html>\n"));
}
