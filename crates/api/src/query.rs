//! Query parameters. An unknown one is refused, so that a typing error is not taken for "all".

use std::{collections::BTreeMap, time::Duration};

use relais_core::{BatchId, Status, TaskId, TaskLink, Timestamp};
use relais_engine::ListQuery;
use relais_protocol::{ErrorNumber, HumanDuration};

use crate::error::ApiError;

const DEFAULT_LIMIT: usize = 50;
const MAX_LIMIT: usize = 200;

/// The parameters of a listing of tasks.
pub(crate) const LISTING: [&str; 7] = ["status", "correlationId", "parentId", "from", "before", "limit", "cursor"];

/// Those of them, and of operators', that name what tasks have in common.
const LINKS: [&str; 4] = ["correlationId", "parentId", "batchId", "waitsFor"];

/// The parameters of one request.
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    /// Reads a query string that may have these parameters, each at most once.
    pub(crate) fn parse(text: Option<&str>, known: &[&str]) -> Result<Self, ApiError> {
        let mut parameters = BTreeMap::new();
        for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name), decode(value));
            let (Some(name), Some(value)) = (name, value) else { return Err(invalid("", "is not valid UTF-8")) };
            if !known.contains(&name.as_str()) {
                let shown: String = name.chars().take(50).collect();
                return Err(invalid(&shown, &format!("is not one of: {}", known.join(", "))));
            }
            if parameters.insert(name.clone(), value).is_some() {
                return Err(invalid(&name, "is given twice"));
            }
        }
        Ok(Self(parameters))
    }

    /// Reads a query string that has one parameter only, as often as it likes up to `most`.
    pub(crate) fn list(text: Option<&str>, known: &str, most: usize) -> Result<Vec<String>, ApiError> {
        let mut values = Vec::new();
        for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            // Each by itself, as any query.
            let one = Self::parse(Some(pair), &[known])?;
            values.extend(one.0.into_values());
        }
        if values.len() > most {
            return Err(invalid(known, &format!("is given more than {most} times")));
        }
        Ok(values)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A duration of at most `most`.
    pub(crate) fn duration(&self, name: &str, most: Duration) -> Result<Option<Duration>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let duration: HumanDuration = text.parse().map_err(|_| invalid(name, "must be a duration like 30s"))?;
        if duration.0 > most {
            return Err(invalid(name, &format!("must be at most {}", HumanDuration(most))));
        }
        Ok(Some(duration.0))
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true" | "") => Ok(true),
            Some(_) => Err(invalid(name, "must be true or false")),
        }
    }

    /// The parameters of every listing: see [`LISTING`].
    pub(crate) fn listing(&self) -> Result<ListQuery, ApiError> {
        let statuses = match self.get("status") {
            Some(list) => list
                .split(',')
                .map(|name| {
                    Status::parse(name).ok_or_else(|| {
                        invalid("status", "must be among PENDING, IN_PROGRESS, SUCCESS, FAILURE, CANCELLED")
                    })
                })
                .collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        let link = self.link()?;
        let (limit, cursor) = (self.limit()?, self.cursor()?);
        Ok(ListQuery { statuses, link, from: self.date("from")?, before: self.date("before")?, limit, cursor })
    }

    /// What the tasks have in common: one thing.
    fn link(&self) -> Result<Option<TaskLink>, ApiError> {
        let mut given = LINKS.into_iter().filter_map(|name| Some((name, self.get(name)?)));
        let Some((name, id)) = given.next() else { return Ok(None) };
        if let Some((other, _)) = given.next() {
            return Err(invalid(other, &format!("is not for a listing by {name}")));
        }
        let task = || TaskId::parse(id).ok_or_else(|| invalid(name, "must be a task's name"));
        Ok(Some(match name {
            "parentId" => TaskLink::Parent(task()?),
            "waitsFor" => TaskLink::After(task()?),
            "batchId" => TaskLink::Batch(BatchId::parse(id).ok_or_else(|| invalid(name, "must be a batch's name"))?),
            _ => TaskLink::Correlation(id.to_owned()),
        }))
    }

    /// How long a page may be.
    pub(crate) fn limit(&self) -> Result<usize, ApiError> {
        self.number("limit", DEFAULT_LIMIT, MAX_LIMIT)
    }

    /// A number from 1 to `most`.
    pub(crate) fn number(&self, name: &str, default: usize, most: usize) -> Result<usize, ApiError> {
        let Some(text) = self.get(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| invalid(name, &format!("must be between 1 and {most}")))
    }

    /// Where the page begins.
    pub(crate) fn cursor(&self) -> Result<Option<String>, ApiError> {
        match self.get("cursor") {
            Some(cursor) if i64::from_str_radix(cursor, 36).is_ok_and(|id| id > 0) => Ok(Some(cursor.to_owned())),
            Some(_) => Err(invalid("cursor", "must be one that an answer gave as nextCursor")),
            None => Ok(None),
        }
    }

    pub(crate) fn date(&self, name: &str) -> Result<Option<Timestamp>, ApiError> {
        let parse =
            |text| Timestamp::parse(text).ok_or_else(|| invalid(name, "must be a date like 2026-01-31T08:30:00Z"));
        self.get(name).map(parse).transpose()
    }
}

fn invalid(name: &str, message: &str) -> ApiError {
    ApiError::at(ErrorNumber::InvalidParameter, name, message)
}

/// Undoes the encoding of forms: `+` and `%20` are spaces.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_repeated_and_malformed_parameters_are_refused() {
        let known = ["wait", "status", "from", "before", "limit", "cursor"];
        for bad in ["wiat=3s", "wait=1s&wait=2s", "wait=%zz", "wait=%ff"] {
            assert!(Query::parse(Some(bad), &known).is_err(), "{bad}");
        }
        let query =
            Query::parse(Some("status=SUCCESS%2CFAILURE&from=2026-01-31T09:30:00%2B01:00&limit=7"), &known).unwrap();
        let listing = query.listing().unwrap();
        assert_eq!(listing.statuses, [Status::Success, Status::Failure]);
        assert_eq!(listing.limit, 7);
        assert_eq!(listing.from.unwrap().to_string(), "2026-01-31T08:30:00.000Z");
        for bad in ["status=DONE", "limit=0", "limit=201", "limit=x", "cursor=!", "cursor=0", "from=now"] {
            assert!(Query::parse(Some(bad), &known).unwrap().listing().is_err(), "{bad}");
        }
        assert_eq!(Query::list(Some("c=a.%3E&c=b"), "c", 2).unwrap(), ["a.>", "b"]);
        for bad in ["c=a&c=b&c=c", "d=a", "c=%zz"] {
            assert!(Query::list(Some(bad), "c", 2).is_err(), "{bad}");
        }
        for bad in ["wait=9999h", "wait=-1s", "wait=soon", "wait="] {
            let query = Query::parse(Some(bad), &known).unwrap();
            assert!(query.duration("wait", Duration::from_secs(120)).is_err(), "{bad}");
        }
    }
}
