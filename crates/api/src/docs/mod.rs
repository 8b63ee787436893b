//! The documentation page: the OpenAPI document as HTML that a person can read.
//!
//! It is one file without scripts and without anything to fetch, so it is served under a policy as strict as
//! `default-src 'none'; style-src 'unsafe-inline'` and works where there is no internet. It says nothing that is not in
//! the document: to change the words, change the routes and types they come from.

mod document;
mod operation;
mod schema;
mod text;

use serde_json::Value;

use document::{Document, Group, list_of, text_of};
use schema::{plain, schema_anchor, shape};
use text::{anchor, escape, inline, path, prose, table};

const STYLE: &str = include_str!("style.css");

/// Renders the page. The same document gives the same page; it is meant to be rendered once and kept.
pub fn page(openapi: &Value) -> String {
    let document = Document(openapi);
    let groups = document.groups();
    let title = escape(text_of(&openapi["info"], "title"));
    let operations: String = groups.iter().map(|group| group_section(document, group)).collect();
    [
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n".to_owned(),
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n".to_owned(),
        "<meta name=\"color-scheme\" content=\"light dark\">\n".to_owned(),
        format!("<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body id=\"top\">\n"),
        "<a class=\"skip\" href=\"#main\">Skip to the documentation</a>\n".to_owned(),
        format!("<header><a href=\"#top\">{title}</a> <a href=\"#contents\">Contents</a></header>\n"),
        navigation(document, &groups),
        "<main id=\"main\">\n".to_owned(),
        introduction(openapi),
        error_numbers(openapi),
        operations,
        schemas(document),
        "</main>\n</body>\n</html>\n".to_owned(),
    ]
    .concat()
}

/// The list of everything. On a phone it is shown when it is the target of the address, and any link in it closes it.
fn navigation(document: Document<'_>, groups: &[Group<'_>]) -> String {
    let link = |id: &str, text: &str| format!("<li><a href=\"#{id}\">{text}</a></li>\n");
    let mut out =
        "<nav id=\"contents\" aria-label=\"Contents\">\n<a class=\"close\" href=\"#top\">Close</a>\n".to_owned();
    out += &format!("<ul>\n{}", link("main", "Introduction"));
    if !list_of(document.0, "x-error-numbers").is_empty() {
        out += &link("errors", "Error numbers");
    }
    out += "</ul>\n";
    for group in groups {
        out += &format!("<p><a href=\"#{}\">{}</a></p>\n<ul>\n", group_anchor(group), escape(group.name));
        for one in &group.operations {
            out += &link(&one.anchor(), &format!("{} {}", operation::badge(one.method), path(one.path)));
        }
        out += "</ul>\n";
    }
    if document.schemas().next().is_some() {
        let links: String = document.schemas().map(|(name, _)| link(&schema_anchor(name), &escape(name))).collect();
        out += &format!("<p><a href=\"#schemas\">Schemas</a></p>\n<ul>\n{links}</ul>\n");
    }
    out + "</nav>\n"
}

fn introduction(openapi: &Value) -> String {
    let info = &openapi["info"];
    let version = escape(text_of(info, "version"));
    [
        format!("<h1>{} <small>{version}</small></h1>\n", escape(text_of(info, "title"))),
        prose(text_of(info, "description")),
        "<p>This page for programs: <a href=\"/openapi.json\"><code>/openapi.json</code></a>, OpenAPI ".to_owned(),
        format!("{}.</p>\n", escape(text_of(openapi, "openapi"))),
    ]
    .concat()
}

fn error_numbers(openapi: &Value) -> String {
    let rows: Vec<[String; 3]> = list_of(openapi, "x-error-numbers")
        .iter()
        .map(|error| {
            let number = plain(&error["number"]);
            let code = format!("<code id=\"{}\">{}</code>", anchor(&format!("error-{number}")), escape(&number));
            let words: String = ["description", "cause", "remedy"]
                .into_iter()
                .filter(|part| !text_of(error, part).is_empty())
                .map(|part| format!("<p class=\"{part}\">{}</p>", inline(text_of(error, part))))
                .collect();
            [code, escape(&plain(&error["status"])), words]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let table = table("errors", ["Number", "Status", "Description, cause and remedy"], &rows);
    format!("<section id=\"errors\">\n<h2>Error numbers</h2>\n{table}</section>\n")
}

fn group_anchor(group: &Group<'_>) -> String {
    anchor(&format!("tag-{}", group.name))
}

fn group_section(document: Document<'_>, group: &Group<'_>) -> String {
    let operations: String = group.operations.iter().map(|one| operation::section(document, one)).collect();
    let (name, description) = (escape(group.name), prose(group.description));
    format!("<section id=\"{}\">\n<h2>{name}</h2>\n{description}{operations}</section>\n", group_anchor(group))
}

fn schemas(document: Document<'_>) -> String {
    let all: String = document
        .schemas()
        .map(|(name, schema)| {
            let id = schema_anchor(name);
            let title = format!("<h3><a href=\"#{id}\">{}</a></h3>\n", escape(name));
            let (description, shape) = (prose(text_of(schema, "description")), shape(document, schema));
            format!("<section class=\"schema\" id=\"{id}\">\n{title}{description}{shape}</section>\n")
        })
        .collect();
    if all.is_empty() {
        return String::new();
    }
    format!("<section id=\"schemas\">\n<h2>Schemas</h2>\n{all}</section>\n")
}

#[cfg(test)]
mod tests;
