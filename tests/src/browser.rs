//! A real Chromium, driven through its own protocol over two pipes: no driver program, no port.
//!
//! Whatever a page complains of (an exception, an error on the console, a violation of the content security policy) is
//! kept, and a test that does not ask for it fails by [`Browser::no_complaints`]. Waiting is for something: a page that
//! has loaded, a condition in the page; all with a deadline.

use std::{
    collections::HashMap,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{ChildStdin, ChildStdout},
    sync::{oneshot, watch},
};

/// How long anything may take before a test is failed for it.
const DEADLINE: Duration = Duration::from_secs(60);

const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

/// How a page is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// `en` or `fr`.
    pub language: &'static str,
    /// `light` or `dark`.
    pub theme: &'static str,
    /// How wide the window is.
    pub width: u32,
}

#[derive(Default)]
struct Heard {
    answers: HashMap<u64, oneshot::Sender<Value>>,
    complaints: Vec<String>,
}

/// A browser with one page.
pub struct Browser {
    process: Child,
    to: tokio::sync::Mutex<ChildStdin>,
    next: AtomicU64,
    session: String,
    heard: Arc<Mutex<Heard>>,
    loads: watch::Receiver<u64>,
    _profile: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its helpers too: they are in its group.
        let _ = Command::new("kill").args(["-9", "--", &format!("-{}", self.process.id())]).status();
        let _ = self.process.wait();
    }
}

/// The program: `RELAIS_TEST_CHROMIUM`, or the first one in PATH.
fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("RELAIS_TEST_CHROMIUM") {
        return Ok(path.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    for name in ["chromium", "chromium-browser", "google-chrome"] {
        if let Some(found) = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file()) {
            return Ok(found);
        }
    }
    bail!("there is no chromium: install the package chromium, or name one in RELAIS_TEST_CHROMIUM")
}

impl Browser {
    /// Starts one.
    pub async fn start() -> Result<Self> {
        let profile = tempfile::tempdir().context("make a profile")?;
        // The protocol is on the descriptors 3 and 4; a shell puts the pipes there.
        let mut process = Command::new("sh")
            .args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#, "sh"])
            .arg(program()?)
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start chromium")?;
        let to = ChildStdin::from_std(process.stdin.take().context("no pipe")?)?;
        let from = ChildStdout::from_std(process.stdout.take().context("no pipe")?)?;
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (loaded, loads) = watch::channel(0);
        tokio::spawn(listen(from, Arc::clone(&heard), loaded));
        let mut browser = Self {
            process,
            to: tokio::sync::Mutex::new(to),
            next: AtomicU64::new(1),
            session: String::new(),
            heard,
            loads,
            _profile: profile,
        };
        let target = browser.send("Target.createTarget", json!({"url": "about:blank"})).await?;
        let attached =
            browser.send("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true})).await?;
        browser.session = attached["sessionId"].as_str().context("no session")?.to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.send(&format!("{domain}.enable"), json!({})).await?;
        }
        Ok(browser)
    }

    /// Sends a command, and waits for its answer.
    pub async fn send(&self, method: &str, params: Value) -> Result<Value> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.heard().answers.insert(id, answer);
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.lock().await.write_all(&bytes).await.context("chromium is gone")?;
        let answer = tokio::time::timeout(DEADLINE, answered).await.with_context(|| format!("{method} hangs"))??;
        if let Some(error) = answer.get("error") {
            bail!("{method}: {error}");
        }
        Ok(answer["result"].clone())
    }

    /// Looks at pages like this from now on.
    pub async fn look(&self, look: Look) -> Result<()> {
        let size = json!({"width": look.width, "height": 900, "deviceScaleFactor": 1, "mobile": look.width < 600});
        self.send("Emulation.setDeviceMetricsOverride", size).await?;
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": look.theme}]});
        self.send("Emulation.setEmulatedMedia", scheme).await?;
        let agent = json!({"userAgent": "relais-tests", "acceptLanguage": look.language});
        self.send("Emulation.setUserAgentOverride", agent).await?;
        Ok(())
    }

    /// Goes to a page, and waits until it has loaded.
    pub async fn open(&self, url: &str) -> Result<()> {
        let mut loads = self.loads.clone();
        loads.borrow_and_update();
        let gone = self.send("Page.navigate", json!({"url": url})).await?;
        ensure!(gone.get("errorText").is_none(), "{url}: {}", gone["errorText"]);
        tokio::time::timeout(DEADLINE, loads.changed()).await.with_context(|| format!("{url} does not load"))??;
        Ok(())
    }

    /// Does something in the page that leads to another one, and waits until that has loaded.
    pub async fn go(&self, script: &str) -> Result<()> {
        let mut loads = self.loads.clone();
        loads.borrow_and_update();
        // The answer may be lost with the page that it was for.
        let left = self.send("Runtime.evaluate", json!({"expression": script, "userGesture": true})).await;
        if let Ok(answer) = left {
            ensure!(answer.get("exceptionDetails").is_none(), "{script}: {}", answer["exceptionDetails"]);
        }
        tokio::time::timeout(DEADLINE, loads.changed()).await.with_context(|| format!("{script} leads nowhere"))??;
        Ok(())
    }

    /// What a script says of the page.
    pub async fn ask(&self, script: &str) -> Result<Value> {
        let asked = json!({"expression": script, "awaitPromise": true, "returnByValue": true, "userGesture": true});
        let answer = self.send("Runtime.evaluate", asked).await?;
        if let Some(error) = answer.get("exceptionDetails") {
            bail!("{script}: {error}");
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until something is so in the page.
    pub async fn until(&self, condition: &str) -> Result<()> {
        let script = format!(
            "new Promise((yes, no) => {{
                const late = setTimeout(() => no(new Error('never')), 20000);
                const look = () => {{ if ({condition}) {{ clearTimeout(late); yes(true); }} else setTimeout(look, 20); }};
                look();
            }})"
        );
        self.ask(&script).await.with_context(|| format!("waited for {condition}"))?;
        Ok(())
    }

    /// Presses a key, as a person would.
    pub async fn press(&self, key: &str) -> Result<()> {
        let text = if key.chars().count() == 1 { json!(key) } else { Value::Null };
        let mut down = json!({"type": "keyDown", "key": key});
        if !text.is_null() {
            down["text"] = text;
        }
        if key == "Enter" {
            down["text"] = json!("\r");
        }
        self.send("Input.dispatchKeyEvent", down).await?;
        self.send("Input.dispatchKeyEvent", json!({"type": "keyUp", "key": key})).await?;
        Ok(())
    }

    /// Presses a key that leads to another page, and waits until that has loaded.
    pub async fn press_and_go(&self, key: &str) -> Result<()> {
        let mut loads = self.loads.clone();
        loads.borrow_and_update();
        self.press(key).await?;
        tokio::time::timeout(DEADLINE, loads.changed()).await.with_context(|| format!("{key} leads nowhere"))??;
        Ok(())
    }

    /// The text that the page shows.
    pub async fn text(&self) -> Result<String> {
        Ok(self.ask("document.body.innerText").await?.as_str().unwrap_or_default().to_owned())
    }

    /// Keeps a picture of the page.
    pub async fn picture(&self, path: &Path) -> Result<()> {
        let shot =
            self.send("Page.captureScreenshot", json!({"format": "png", "captureBeyondViewport": false})).await?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap_or_default())?;
        std::fs::write(path, bytes).with_context(|| format!("write {}", path.display()))
    }

    /// What pages have complained of since this was last asked.
    pub fn complaints(&self) -> Vec<String> {
        std::mem::take(&mut self.heard().complaints)
    }

    /// Fails if a page has complained.
    pub fn no_complaints(&self, what: &str) -> Result<()> {
        let complaints = self.complaints();
        ensure!(complaints.is_empty(), "{what}: {complaints:#?}");
        Ok(())
    }

    fn heard(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads messages until the browser is gone.
async fn listen(from: ChildStdout, heard: Arc<Mutex<Heard>>, loaded: watch::Sender<u64>) {
    let mut from = BufReader::new(from);
    let mut bytes = Vec::new();
    while from.read_until(0, &mut bytes).await.is_ok_and(|count| count > 0) {
        bytes.pop();
        let message: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        bytes.clear();
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = message["id"].as_u64() {
            if let Some(waiting) = heard.answers.remove(&id) {
                let _ = waiting.send(message);
            }
            continue;
        }
        let params = &message["params"];
        let complaint = match message["method"].as_str().unwrap_or_default() {
            "Page.loadEventFired" => {
                loaded.send_modify(|loads| *loads += 1);
                None
            }
            "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled" if params["type"] == "error" => Some(params["args"].to_string()),
            "Log.entryAdded" if params["entry"]["level"] == "error" => Some(params["entry"]["text"].to_string()),
            _ => None,
        };
        heard.complaints.extend(complaint);
    }
}
