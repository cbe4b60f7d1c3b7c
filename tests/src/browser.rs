//! A real browser without a screen: headless Chromium, controlled over its debugging pipe. It
//! reports the addresses that its page requests and the page's errors.

use crate::namespaces::Namespaces;
use crate::process::{WATCHDOG, run, wait};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Timeout of a page: far longer than any content takes to appear.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for Chromium to exit by itself.
const FAREWELL: Duration = Duration::from_secs(10);

/// Creates a home directory whose browser trusts the authority in `pki` (`miot pki`) and has a
/// reader's certificate, if `reader` is given.
///
/// # Panics
/// If it cannot be created.
#[must_use]
pub fn home(home: &Path, pki: &Path, reader: Option<&str>) -> PathBuf {
    let done = |command: &mut Command| drop(run(command).success());
    let store = home.join(".pki/nssdb");
    std::fs::create_dir_all(&store).unwrap_or_else(|e| panic!("{}: {e}", store.display()));
    let at = format!("sql:{}", store.display());
    done(Command::new("certutil").args(["-N", "--empty-password", "-d", &at]));
    let authority = pki.join("ca.pem");
    done(Command::new("certutil").args(["-A", "-n", "MIOT", "-t", "C,,", "-d", &at, "-i"]).arg(authority));
    if let Some(reader) = reader {
        let file = |end| pki.join(format!("reader/{reader}.{end}"));
        let both = home.join("reader.p12");
        let mut openssl = Command::new("openssl");
        openssl.args(["pkcs12", "-export", "-passout", "pass:reader", "-in"]).arg(file("pem"));
        done(openssl.arg("-inkey").arg(file("key")).arg("-out").arg(&both));
        done(Command::new("pk12util").args(["-d", &at, "-K", "", "-W", "reader", "-i"]).arg(&both));
    }
    home.to_owned()
}

/// Lets browsers in the namespaces present their certificate at an address without asking. The
/// namespaces need mounts of their own.
///
/// # Panics
/// If the policy cannot be written.
pub fn show_certificates(room: &Namespaces, url: &str) {
    const FOLDER: &str = "/etc/chromium";
    room.shell(&format!(
        "mkdir -p {FOLDER} && mount -t tmpfs tmpfs {FOLDER} && mkdir -p {FOLDER}/policies/managed"
    ));
    let policy = json!({ "pattern": url, "filter": {} }).to_string();
    let policy = json!({ "AutoSelectCertificateForUrls": [policy] }).to_string();
    let file = room.seen(Path::new(FOLDER)).join("policies/managed/miot.json");
    std::fs::write(&file, policy).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
}

/// A browser with one page. Chromium exits when this value is dropped.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<Value>,
    number: u64,
    /// Debugging session of the page.
    session: Value,
    asked: Vec<String>,
    complaints: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser in the environment of the test.
    #[must_use]
    pub fn start() -> Browser {
        Browser::within(|chromium| chromium)
    }

    /// Starts a browser inside namespaces, with its own home directory.
    #[must_use]
    pub fn of(room: &Namespaces, home: &Path) -> Browser {
        Browser::within(|mut chromium| room.inside(chromium.env("HOME", home)))
    }

    /// Starts a browser by the command that `place` derives from the usual one.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn within(place: impl FnOnce(Command) -> Command) -> Browser {
        let profile = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        let mut chromium = Command::new("sh");
        // Chromium reads commands from descriptor 3 and writes answers to 4.
        chromium.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh", "chromium"]);
        // Tests may run as root and in containers, and there is no display.
        chromium.args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"]);
        chromium.args(["--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run"]);
        chromium.args(["--window-size=1280,1000"]);
        chromium.arg(format!("--user-data-dir={}", profile.path().display()));
        let mut command = place(chromium);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let (sender, answers) = channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                let messages = BufReader::new(out).split(0).map_while(Result::ok);
                let values = messages.map_while(|message| serde_json::from_slice(&message).ok());
                values.map_while(|value| sender.send(value).ok()).for_each(drop);
            });
        }
        let mut browser = Browser {
            orders: child.stdin.take(),
            child,
            answers,
            number: 0,
            session: Value::Null,
            asked: Vec::new(),
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = browser.order("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.order("Target.attachToTarget", attach)["sessionId"].take();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            let _ = browser.order(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Loads an address. Returns Chromium's error if it fails.
    ///
    /// # Errors
    /// Chromium's error name: `net::ERR_…`.
    pub fn open(&mut self, url: &str) -> Result<(), String> {
        let answer = self.order("Page.navigate", json!({ "url": url }));
        answer["errorText"].as_str().map_or(Ok(()), |error| Err(error.to_owned()))
    }

    /// Returns the value of an expression in the page.
    ///
    /// # Panics
    /// If it throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let wanted = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.order("Runtime.evaluate", wanted);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true in the page.
    ///
    /// # Panics
    /// If it does not become true.
    pub fn shows(&mut self, expression: &str) {
        let start = Instant::now();
        while self.value(expression) != true {
            assert!(
                start.elapsed() < PATIENCE,
                "not {expression}\n{}",
                self.value("document.body.innerText").as_str().unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Clicks into the middle of an element, which must be visible.
    ///
    /// # Panics
    /// If the element does not exist or is covered.
    pub fn click(&mut self, selector: &str) {
        let place = self.press(selector);
        self.release(&place);
    }

    /// Presses the left button on the middle of an element; returns that place.
    ///
    /// # Panics
    /// If the element is not there, or another one covers it.
    pub fn press(&mut self, selector: &str) -> Value {
        let place = self.value(&format!(
            "(() => {{
                const wanted = document.querySelector({selector:?});
                wanted.scrollIntoView({{ block: 'center' }});
                const {{ x, y, width, height }} = wanted.getBoundingClientRect();
                const [middle, half] = [x + width / 2, y + height / 2];
                const hit = document.elementFromPoint(middle, half);
                return wanted.contains(hit) ? [middle, half] : [hit?.outerHTML];
            }})()"
        ));
        assert!(place[1].is_number(), "{selector} cannot be clicked: {place}");
        self.button("mousePressed", &place);
        place
    }

    /// Releases the left button at this place.
    pub fn release(&mut self, place: &Value) {
        self.button("mouseReleased", place);
    }

    fn button(&mut self, kind: &str, place: &Value) {
        let event = json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
        let _ = self.order("Input.dispatchMouseEvent", event);
    }

    /// Allows pages to save files into a directory.
    pub fn save_into(&mut self, dir: &Path) {
        let _ =
            self.order("Browser.setDownloadBehavior", json!({ "behavior": "allow", "downloadPath": dir }));
    }

    /// Clicks into a field and types text.
    pub fn write(&mut self, selector: &str, text: &str) {
        self.click(selector);
        let _ = self.order("Input.insertText", json!({ "text": text }));
    }

    /// Selects a value of a list.
    pub fn choose(&mut self, selector: &str, value: &str) {
        let _ = self.value(&format!(
            "{{
                const list = document.querySelector({selector:?});
                list.value = {value:?};
                list.dispatchEvent(new Event('change'));
            }}"
        ));
    }

    /// Addresses that pages have requested so far, including failed requests.
    #[must_use]
    pub fn asked(&self) -> &[String] {
        &self.asked
    }

    /// Console errors, warnings and exceptions of pages since the last call.
    pub fn complaints(&mut self) -> Vec<String> {
        // Pending events arrive before the answer.
        let _ = self.value("0");
        std::mem::take(&mut self.complaints)
    }

    /// Takes a picture of the page, or of one element.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn picture(&mut self, selector: Option<&str>, file: &Path) {
        let mut wanted = json!({});
        if let Some(selector) = selector {
            wanted["clip"] = self.value(&format!(
                "(({{ x, y, width, height }}) => ({{ x, y, width, height, scale: 1 }}))
                    (document.querySelector({selector:?}).getBoundingClientRect())"
            ));
        }
        let picture = self.order("Page.captureScreenshot", wanted);
        let to =
            Stdio::from(std::fs::File::create(file).unwrap_or_else(|e| panic!("{}: {e}", file.display())));
        let base64 = Command::new("base64").arg("--decode").stdin(Stdio::piped()).stdout(to).spawn();
        let mut base64 = base64.unwrap_or_else(|e| panic!("base64: {e}"));
        let data = picture["data"].as_str().unwrap_or_default();
        let written = base64.stdin.take().map(|mut pipe| pipe.write_all(data.as_bytes()));
        let status = base64.wait();
        assert!(matches!(written, Some(Ok(()))) && status.is_ok_and(|s| s.success()), "{}", file.display());
    }

    /// Sends a command to Chromium and returns its answer.
    fn order(&mut self, method: &str, params: Value) -> Value {
        self.number += 1;
        let mut order = json!({ "id": self.number, "method": method, "params": params });
        if self.session.is_string() {
            order["sessionId"] = self.session.clone();
        }
        let sent = self.orders.as_mut().map(|orders| orders.write_all(format!("{order}\0").as_bytes()));
        assert!(matches!(sent, Some(Ok(()))), "{method}: chromium has ended: {:?}", self.child.try_wait());
        loop {
            let mut message = self.answers.recv_timeout(WATCHDOG).unwrap_or_else(|e| panic!("{method}: {e}"));
            if message["id"] == self.number {
                assert!(message["error"].is_null(), "{order}: {message}");
                return message["result"].take();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                self.asked.extend(params["request"]["url"].as_str().map(str::to_owned));
            }
            Some("Network.webSocketCreated" | "Network.webTransportCreated") => {
                self.asked.extend(params["url"].as_str().map(str::to_owned));
            }
            Some("Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded") => {
                self.complaints.push(params.to_string());
            }
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromium exits when its pipe is closed.
        self.orders = None;
        if wait(&mut self.child, FAREWELL).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
