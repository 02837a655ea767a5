//! Connection URLs: `postgresql://user:password@host:port/database?sslmode=…`.

use std::path::PathBuf;
use tidepool_base::{Error, Result, SqlState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SslMode {
    Disable,
    /// Encrypt where the server can, and trust whoever answers.
    Prefer,
    /// Encrypt or fail, and trust whoever answers.
    Require,
    /// Encrypt, and check the certificate against `sslrootcert`.
    VerifyFull,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub user: String,
    pub password: Option<String>,
    pub host: String,
    pub port: u16,
    pub database: String,
    pub ssl_mode: SslMode,
    pub ssl_root_certificate: Option<PathBuf>,
    /// Everything else after the question mark: start-up parameters.
    pub parameters: Vec<(String, String)>,
}

const PORT_DEFAULT: u16 = 5477;

fn invalid(text: &str, why: impl Into<String>) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid connection URL: \"{text}\""))
        .with_detail(why)
        .with_hint("Write postgresql://USER@HOST:PORT/DATABASE, as `tidepool serve` prints it.")
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

impl Url {
    pub fn is_url(text: &str) -> bool {
        text.starts_with("postgresql://") || text.starts_with("postgres://")
    }

    pub fn parse(text: &str) -> Result<Url> {
        let Some((_, rest)) = text.split_once("://").filter(|_| Url::is_url(text)) else {
            return Err(invalid(text, "It does not begin with postgresql://."));
        };
        let decoded = |part: &str| decode(part).ok_or_else(|| invalid(text, format!("\"{part}\" has a bad % escape.")));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user_info, address) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match user_info.split_once(':') {
            Some((user, password)) => (user, Some(decoded(password)?)),
            None => (user_info, None),
        };
        let (host, port) = match address.strip_prefix('[') {
            Some(bracketed) => {
                let (host, port) =
                    bracketed.split_once(']').ok_or_else(|| invalid(text, "A bracket is not closed."))?;
                (host, port.strip_prefix(':'))
            }
            None => match address.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (address, None),
            },
        };
        let port = match port {
            None | Some("") => PORT_DEFAULT,
            Some(port) => port.parse().map_err(|_| invalid(text, format!("\"{port}\" is not a port.")))?,
        };
        let or_default = |part: String, default: &str| if part.is_empty() { default.to_owned() } else { part };
        let mut url = Url {
            user: or_default(decoded(user)?, tidepool_server::ROLE_NAME),
            password,
            host: or_default(decoded(host)?, "127.0.0.1"),
            port,
            database: or_default(decoded(database)?, tidepool_server::DATABASE_NAME),
            ssl_mode: SslMode::Prefer,
            ssl_root_certificate: None,
            parameters: Vec::new(),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            match name.as_str() {
                "sslmode" => {
                    url.ssl_mode = match value.as_str() {
                        "disable" => SslMode::Disable,
                        "allow" | "prefer" => SslMode::Prefer,
                        "require" => SslMode::Require,
                        "verify-ca" | "verify-full" => SslMode::VerifyFull,
                        _ => return Err(invalid(text, format!("sslmode \"{value}\" does not exist."))),
                    };
                }
                "sslrootcert" => url.ssl_root_certificate = Some(value.into()),
                "user" => url.user = value,
                "password" => url.password = Some(value),
                "host" => url.host = value,
                "port" => {
                    url.port = value.parse().map_err(|_| invalid(text, format!("\"{value}\" is not a port.")))?;
                }
                "dbname" => url.database = value,
                // What libpq knows and this client has no use for.
                "connect_timeout" | "keepalives" | "channel_binding" | "gssencmode" | "target_session_attrs" => (),
                _ => url.parameters.push((name, value)),
            }
        }
        if url.ssl_mode == SslMode::VerifyFull && url.ssl_root_certificate.is_none() {
            return Err(invalid(text, "sslmode=verify-full needs sslrootcert=FILE."));
        }
        Ok(url)
    }
}
