//! An answer, kept as the text it came in.

use reqwest::header::HeaderMap;
use serde_json::Value;

/// An HTTP answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, byte for byte.
    pub text: String,
}

impl Answer {
    pub(super) async fn read(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap_or_else(|error| panic!("the answer broke off: {error}"));
        Self { status, headers, text }
    }

    /// The body, read.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("the answer is not JSON ({error}): {} {}", self.status, self.text))
    }

    /// `data` of an answer that gives what was asked for.
    pub fn data(&self) -> Value {
        let mut json = self.json();
        assert!(self.status < 300 && json["status"] == "success", "refused: {} {}", self.status, self.text);
        json["data"].take()
    }

    /// The number of an answer that refuses. Its shape and its HTTP status are checked on the way.
    pub fn number(&self) -> u64 {
        let json = self.json();
        assert_eq!(json["status"], "error", "not refused: {} {}", self.status, self.text);
        let number = json["error"]["number"].as_u64().unwrap_or_default();
        assert_eq!(number / 1000, u64::from(self.status), "{} {}", self.status, self.text);
        assert!(json["error"]["description"].is_string(), "{}", self.text);
        assert_eq!(self.header("content-type"), Some("application/json"));
        number
    }

    /// A header that is there once, as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?.to_str().ok();
        assert!(values.next().is_none(), "{name} is there twice");
        value
    }
}
