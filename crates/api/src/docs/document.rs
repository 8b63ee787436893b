//! Finding one's way in an OpenAPI document: references, and operations in groups.

use serde_json::Value;

use super::text;

/// In the order they are shown on a path.
const METHODS: [&str; 8] = ["get", "post", "put", "patch", "delete", "head", "options", "trace"];

/// A reference to a reference to a reference… is followed this far.
const MAX_HOPS: usize = 8;

/// An OpenAPI document. What is missing or malformed in it is shown as nothing.
#[derive(Clone, Copy)]
pub(super) struct Document<'a>(pub(super) &'a Value);

/// A method on a path.
pub(super) struct Operation<'a> {
    pub(super) method: &'static str,
    pub(super) path: &'a str,
    pub(super) body: &'a Value,
    /// The path's own part of the document: parameters there hold for each of its methods.
    shared: &'a Value,
}

/// The operations that carry the same tag.
pub(super) struct Group<'a> {
    pub(super) name: &'a str,
    pub(super) description: &'a str,
    pub(super) operations: Vec<Operation<'a>>,
}

/// A member that is a text, or nothing.
pub(super) fn text_of<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// A member's elements, or none.
pub(super) fn list_of<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

/// A member's members, or none.
pub(super) fn members_of<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
    value[name].as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

impl<'a> Document<'a> {
    /// What a reference leads to; the value itself if it is none.
    pub(super) fn resolve(self, value: &'a Value) -> &'a Value {
        let mut found = value;
        for _ in 0..MAX_HOPS {
            let Some(pointer) = found["$ref"].as_str().and_then(|target| target.strip_prefix('#')) else { break };
            found = self.0.pointer(pointer).unwrap_or(&Value::Null);
        }
        found
    }

    /// The schemas that have a name.
    pub(super) fn schemas(self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        members_of(&self.0["components"], "schemas")
    }

    /// All operations by their first tag, in the order the document declares its tags; others follow.
    pub(super) fn groups(self) -> Vec<Group<'a>> {
        let mut groups: Vec<Group<'a>> = list_of(self.0, "tags")
            .iter()
            .map(|tag| Group {
                name: text_of(tag, "name"),
                description: text_of(tag, "description"),
                operations: vec![],
            })
            .collect();
        for operation in self.operations() {
            let tag = operation.body["tags"][0].as_str().unwrap_or("Other");
            match groups.iter_mut().find(|group| group.name == tag) {
                Some(group) => group.operations.push(operation),
                None => groups.push(Group { name: tag, description: "", operations: vec![operation] }),
            }
        }
        groups.retain(|group| !group.operations.is_empty());
        groups
    }

    fn operations(self) -> impl Iterator<Item = Operation<'a>> {
        members_of(self.0, "paths").flat_map(|(path, shared)| {
            METHODS.into_iter().filter_map(move |method| {
                let body = shared.get(method)?;
                Some(Operation { method, path, body, shared })
            })
        })
    }
}

impl<'a> Operation<'a> {
    /// Its place on the page.
    pub(super) fn anchor(&self) -> String {
        text::anchor(&format!("{}-{}", self.method, self.path))
    }

    /// Its parameters, and those of its path that it does not replace.
    pub(super) fn parameters(&self, document: Document<'a>) -> Vec<&'a Value> {
        let key = |parameter: &Value| (text_of(parameter, "name").to_owned(), text_of(parameter, "in").to_owned());
        let resolved = |holder: &'a Value| list_of(holder, "parameters").iter().map(move |one| document.resolve(one));
        let own: Vec<&Value> = resolved(self.body).collect();
        let of_path = resolved(self.shared).filter(|one| own.iter().all(|other| key(one) != key(other)));
        of_path.chain(own.iter().copied()).collect()
    }

    /// The content type and schema-bearing part of a body; JSON if there is a choice.
    pub(super) fn media(content: &'a Value) -> Option<(&'a str, &'a Value)> {
        let json = members_of(content, "content").find(|(kind, _)| *kind == "application/json");
        json.or_else(|| members_of(content, "content").next())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_in_a_circle_end() {
        let value = json!({ "a": { "$ref": "#/b" }, "b": { "$ref": "#/a" }, "c": { "$ref": "#/nowhere" }, "d": { "$ref": "#/e" }, "e": 1 });
        let document = Document(&value);
        assert!(document.resolve(&value["a"]).is_object());
        assert!(document.resolve(&value["c"]).is_null());
        assert_eq!(document.resolve(&value["d"]), 1);
    }

    #[test]
    fn groups_keep_the_order_of_the_tags() {
        let value = json!({
            "tags": [{ "name": "z" }, { "name": "unused" }, { "name": "a" }],
            "paths": {
                "/1": { "delete": { "tags": ["a"] }, "get": { "tags": ["a"] } },
                "/2": { "get": { "tags": ["z"] } },
                "/3": { "get": {} },
            },
        });
        let groups = Document(&value).groups();
        let shown: Vec<(&str, Vec<String>)> =
            groups.iter().map(|group| (group.name, group.operations.iter().map(Operation::anchor).collect())).collect();
        assert_eq!(
            shown,
            [
                ("z", vec!["get-/2".to_owned()]),
                ("a", vec!["get-/1".to_owned(), "delete-/1".to_owned()]),
                ("Other", vec!["get-/3".to_owned()]),
            ]
        );
    }

    #[test]
    fn an_operation_replaces_a_parameter_of_its_path() {
        let value = json!({ "paths": { "/x": {
            "parameters": [{ "name": "a", "in": "query", "description": "path" }, { "name": "b", "in": "query" }],
            "get": { "parameters": [{ "name": "a", "in": "query", "description": "own" }] },
        } } });
        let document = Document(&value);
        let operation = document.operations().next().unwrap();
        let shown: Vec<(&str, &str)> = operation
            .parameters(document)
            .iter()
            .map(|one| (text_of(one, "name"), text_of(one, "description")))
            .collect();
        assert_eq!(shown, [("b", ""), ("a", "own")]);
    }
}
