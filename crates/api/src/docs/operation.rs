//! One operation: what it takes, what it answers, and how to call it from a shell.

use serde_json::Value;

use super::{
    document::{Document, Operation, members_of, text_of},
    schema::{Fields, example, need, notes_of, plain, shape, type_of},
    text::{block, escape, inline, path, prose, table},
};

/// The server in examples, where the document names none.
const LOCAL_SERVER: &str = "http://localhost:8080";

/// Everything about an operation.
pub(super) fn section(document: Document<'_>, operation: &Operation<'_>) -> String {
    let id = operation.anchor();
    let summary = text_of(operation.body, "summary");
    let summary =
        if summary.is_empty() { String::new() } else { format!("<p class=\"summary\">{}</p>\n", inline(summary)) };
    [
        format!("<section class=\"operation\" id=\"{id}\" aria-labelledby=\"{id}-title\">\n"),
        format!(
            "<h3 id=\"{id}-title\"><a href=\"#{id}\">{} {}</a></h3>\n",
            badge(operation.method),
            path(operation.path)
        ),
        summary,
        prose(text_of(operation.body, "description")),
        block("curl", &curl(document, operation)),
        parameters(document, operation),
        request_body(document, operation),
        responses(document, operation),
        "</section>\n".to_owned(),
    ]
    .concat()
}

/// The method as a coloured word.
pub(super) fn badge(method: &str) -> String {
    format!("<span class=\"method {method}\">{}</span>", method.to_uppercase())
}

fn parameters<'a>(document: Document<'a>, operation: &Operation<'a>) -> String {
    let rows: Vec<[String; 5]> = operation
        .parameters(document)
        .into_iter()
        .map(|parameter| {
            let schema = &parameter["schema"];
            let described = [inline(text_of(parameter, "description")), notes_of(schema)];
            [
                format!("<code>{}</code>", escape(text_of(parameter, "name"))),
                escape(text_of(parameter, "in")),
                need(parameter["required"] == true),
                type_of(schema),
                described.join(" ").trim().to_owned(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    "<h4>Parameters</h4>\n".to_owned() + &table("parameters", ["Name", "In", "Required", "Type", "Description"], &rows)
}

fn request_body<'a>(document: Document<'a>, operation: &Operation<'a>) -> String {
    let body = document.resolve(&operation.body["requestBody"]);
    let Some((kind, media)) = Operation::media(body) else { return String::new() };
    [
        "<h4>Request body</h4>\n".to_owned(),
        prose(text_of(body, "description")),
        content_line(kind, media),
        shape(document, &media["schema"]),
        example_block("details open", "Example of a request", document, media),
    ]
    .concat()
}

fn content_line(kind: &str, media: &Value) -> String {
    format!("<p class=\"content\">{} <span>{}</span></p>\n", type_of(&media["schema"]), escape(kind))
}

fn example_block(opening: &str, title: &str, document: Document<'_>, media: &Value) -> String {
    let example = example(document, media, Fields::All);
    let text = match &example {
        Value::Null => return String::new(),
        Value::String(text) => text.clone(),
        json => format!("{json:#}"),
    };
    format!("<{opening}>\n<summary>{title}</summary>\n{}</details>\n", block("example", &text))
}

fn responses<'a>(document: Document<'a>, operation: &Operation<'a>) -> String {
    let all = members_of(operation.body, "responses").map(|(status, response)| (status, document.resolve(response)));
    let (refusals, answers): (Vec<_>, Vec<_>) = all.partition(|(status, _)| status.starts_with(['4', '5', 'd']));
    let mut out = "<h4>Responses</h4>\n".to_owned();
    for (status, response) in answers {
        out += &answer(document, status, response);
    }
    if !refusals.is_empty() {
        out += &refusals_table(&refusals);
    }
    out
}

fn answer<'a>(document: Document<'a>, status: &str, response: &'a Value) -> String {
    let description = inline(text_of(response, "description"));
    let mut out = format!("<p class=\"answer\"><span class=\"status\">{}</span> {description}</p>\n", escape(status));
    let headers: Vec<[String; 3]> = members_of(response, "headers")
        .map(|(name, header)| {
            let header = document.resolve(header);
            let notes = inline(text_of(header, "description"));
            [format!("<code>{}</code>", escape(name)), type_of(&header["schema"]), notes]
        })
        .collect();
    if !headers.is_empty() {
        out += &table("headers", ["Header", "Type", "Description"], &headers);
    }
    if let Some((kind, media)) = Operation::media(response) {
        out += &content_line(kind, media);
        let fields = shape(document, &media["schema"]);
        out += &format!("<details>\n<summary>Fields of the answer</summary>\n{fields}</details>\n");
        out += &example_block("details", "Example of an answer", document, media);
    }
    out
}

/// The answers that say no: much the same everywhere, so folded away.
fn refusals_table(refusals: &[(&str, &Value)]) -> String {
    let statuses: Vec<String> = refusals.iter().map(|(status, _)| escape(status)).collect();
    let rows: Vec<[String; 3]> = refusals
        .iter()
        .map(|(status, response)| {
            let body = Operation::media(response).map(|(_, media)| type_of(&media["schema"]));
            let description = inline(text_of(response, "description"));
            [format!("<span class=\"status\">{}</span>", escape(status)), description, body.unwrap_or_default()]
        })
        .collect();
    let table = table("refusals", ["Status", "Description", "Body"], &rows);
    format!("<details>\n<summary>Refusals <span>{}</span></summary>\n{table}</details>\n", statuses.join(", "))
}

/// A call to be pasted into a shell. What is to be replaced reads `my-…`.
fn curl<'a>(document: Document<'a>, operation: &Operation<'a>) -> String {
    let server = document.0["servers"][0]["url"].as_str().filter(|url| url.starts_with("http")).unwrap_or(LOCAL_SERVER);
    let mut url = format!("{}{}", server.trim_end_matches('/'), operation.path);
    let mut query = Vec::new();
    let mut options: Vec<String> = credentials(operation.path).map(str::to_owned).into_iter().collect();
    for parameter in operation.parameters(document) {
        let name = text_of(parameter, "name");
        let value = parameter_value(document, parameter);
        match text_of(parameter, "in") {
            "path" => url = url.replace(&format!("{{{name}}}"), &value),
            "query" if parameter["required"] == true => query.push(format!("{name}={value}")),
            "header" if parameter["required"] == true => {
                options.push(format!("-H {}", quoted(&format!("{name}: {value}"))))
            }
            _ => {}
        }
    }
    if !query.is_empty() {
        url += &format!("?{}", query.join("&"));
    }
    let body = Operation::media(document.resolve(&operation.body["requestBody"]));
    if let Some((kind, media)) = body {
        options.push(format!("-H {}", quoted(&format!("Content-Type: {kind}"))));
        options.push(format!("-d {}", quoted(&plain(&example(document, media, Fields::Needed)))));
    }
    let method = match operation.method {
        "get" => String::new(),
        "post" if body.is_some() => String::new(),
        "head" => " -I".to_owned(),
        method => format!(" -X {}", method.to_uppercase()),
    };
    let streams = members_of(operation.body, "responses")
        .any(|(_, response)| document.resolve(response)["content"].get("text/event-stream").is_some());
    let lines: Vec<String> =
        std::iter::once(format!("curl{}{method} {}", if streams { " -N" } else { "" }, quoted(&url)))
            .chain(options)
            .collect();
    lines.join(" \\\n  ")
}

/// Operators have a token; consumers and workers have a name and a secret; the rest is open.
fn credentials(path: &str) -> Option<&'static str> {
    match path.split('/').nth(1) {
        Some("admin") => Some("-H \"Authorization: Bearer $RELAIS_ADMIN_TOKEN\""),
        Some("v1") => Some("-u client-id:client-secret"),
        _ => None,
    }
}

/// The parameter's own example, or a name in its place.
fn parameter_value(document: Document<'_>, parameter: &Value) -> String {
    match plain(&example(document, parameter, Fields::Needed)).as_str() {
        "string" | "null" => format!("my-{}", kebab(text_of(parameter, "name"))),
        value => value.to_owned(),
    }
}

fn kebab(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// One word for a shell, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn curls(value: &Value) -> Vec<String> {
        let document = Document(value);
        document.groups().iter().flat_map(|group| &group.operations).map(|one| curl(document, one)).collect()
    }

    #[test]
    fn a_call_has_the_credentials_of_its_path() {
        let value =
            json!({ "paths": { "/admin/x": { "delete": {} }, "/healthz": { "get": {} }, "/v1/x": { "post": {} } } });
        assert_eq!(
            curls(&value),
            [
                "curl -X DELETE 'http://localhost:8080/admin/x' \\\n  -H \"Authorization: Bearer $RELAIS_ADMIN_TOKEN\"",
                "curl 'http://localhost:8080/healthz'",
                "curl -X POST 'http://localhost:8080/v1/x' \\\n  -u client-id:client-secret",
            ]
        );
    }

    #[test]
    fn a_call_is_safe_to_paste() {
        let value = json!({
            "servers": [{ "url": "https://relais.example.org/" }],
            "paths": { "/v1/{serviceName}": { "post": {
                "parameters": [
                    { "name": "serviceName", "in": "path", "required": true, "schema": { "type": "string" } },
                    { "name": "limit", "in": "query", "required": true, "schema": { "type": "integer", "default": 50 } },
                    { "name": "cursor", "in": "query", "schema": { "type": "string" } },
                ],
                "requestBody": { "content": { "application/json": { "example": { "text": "it's; $(rm)" } } } },
            } } },
        });
        let expected = [
            "curl 'https://relais.example.org/v1/my-service-name?limit=50'",
            "-u client-id:client-secret",
            "-H 'Content-Type: application/json'",
            r#"-d '{"text":"it'\''s; $(rm)"}'"#,
        ];
        assert_eq!(curls(&value), [expected.join(" \\\n  ")]);
    }
}
