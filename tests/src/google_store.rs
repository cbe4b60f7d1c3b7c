//! Protocol of Google Cloud Storage in front of a server of the S3 protocol.
//!
//! No emulator in the registries answers the requests of Google's XML protocol that write objects.
//! That protocol and S3 differ in credentials and in the header of a conditional put, which nginx
//! translates here.

use crate::daemons::free_port;
use crate::object_store::KEYS;
use crate::process::{Background, run, until};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

/// File with a line for each request: method, status, generation that it requires.
const CONDITIONS: &str = "conditions";

/// A running nginx, and the key of a service account.
#[derive(Debug)]
pub struct GoogleStore {
    /// Port on loopback.
    pub port: u16,
    key: String,
    conditions: PathBuf,
    _nginx: Background,
}

impl GoogleStore {
    /// Starts nginx in front of the S3 server on a port, with its files in `place`. The server must
    /// not check signatures, as moto.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(s3: u16, place: &Path) -> GoogleStore {
        let port = free_port();
        let configuration = place.join("nginx.conf");
        let text = format!(
            r#"daemon off;
master_process off;
pid {place}/nginx.pid;
events {{}}
http {{
    client_body_temp_path {place}/bodies;
    proxy_temp_path {place}/answers;
    fastcgi_temp_path {place}/unused;
    uwsgi_temp_path {place}/unused;
    scgi_temp_path {place}/unused;
    client_max_body_size 0;
    log_format conditions '$request_method $status $http_x_goog_if_generation_match';
    access_log {place}/{CONDITIONS} conditions;
    map $http_x_goog_if_generation_match $if_none_match {{
        0 "*";
        default "";
    }}
    server {{
        listen 127.0.0.1:{port};
        if ($http_authorization !~ "^Bearer [-_a-zA-Z0-9]+[.][-_a-zA-Z0-9]+[.][-_a-zA-Z0-9]+$") {{
            return 401;
        }}
        location / {{
            proxy_pass http://127.0.0.1:{s3};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Authorization "AWS4-HMAC-SHA256 Credential={key}/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
            proxy_set_header If-None-Match $if_none_match;
        }}
    }}
}}
"#,
            place = place.display(),
            key = KEYS.0,
        );
        std::fs::write(&configuration, text).unwrap_or_else(|e| panic!("{e}"));
        let mut nginx = Command::new("/usr/sbin/nginx");
        nginx.arg("-c").arg(&configuration).arg("-e").arg(place.join("nginx.log"));
        let mut nginx = Background::start(&mut nginx);
        until("nginx listens", || {
            assert!(nginx.running(), "nginx has ended: {}", nginx.printed());
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        GoogleStore { port, key: service_account(), conditions: place.join(CONDITIONS), _nginx: nginx }
    }

    /// Returns the number of objects that were put on the condition that they did not exist.
    ///
    /// # Panics
    /// If the log of requests cannot be read.
    #[must_use]
    pub fn created(&self) -> usize {
        let lines = std::fs::read_to_string(&self.conditions).unwrap_or_else(|e| panic!("{e}"));
        lines.lines().filter(|line| *line == "PUT 200 0").count()
    }

    /// Environment in which programs use the store through this port.
    #[must_use]
    pub fn environment(&self, port: u16) -> [(&'static str, String); 2] {
        [
            ("GOOGLE_BASE_URL", format!("http://127.0.0.1:{port}")),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", self.key.clone()),
        ]
    }
}

/// Returns a new key file, from which a client makes its tokens.
fn service_account() -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(["genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]);
    let private_key = run(&mut openssl).success().stdout;
    serde_json::json!({
        "type": "service_account",
        "private_key": private_key,
        "private_key_id": "1",
        "client_email": "miot@example.org",
    })
    .to_string()
}
