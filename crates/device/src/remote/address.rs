//! Where a memory node listens, and the token that both sides know.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use tidepool_base::{Error, Result, SqlState};
use tidepool_wire::Token;
use tidepool_wire::transport::Transport;
use tidepool_wire::transport::stream::{connect_tcp, connect_unix};

/// `HOST:PORT`, or `unix:PATH` for a socket on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeAddress {
    Tcp(String),
    Unix(PathBuf),
}

/// What peers of one machine know without being told. It is no secret: the address keeps others out.
const LOCAL_TOKEN: &[u8] = b"tidepool memory node of this machine";

impl NodeAddress {
    /// Whether only processes of this machine can connect.
    pub fn is_local(&self) -> bool {
        match self {
            NodeAddress::Unix(_) => true,
            NodeAddress::Tcp(address) => {
                let host = address.rsplit_once(':').map_or("", |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        }
    }

    pub fn connect(&self, timeout: Duration) -> Result<Box<dyn Transport>> {
        match self {
            NodeAddress::Tcp(address) => Ok(Box::new(connect_tcp(address, timeout)?)),
            NodeAddress::Unix(path) => Ok(Box::new(connect_unix(path)?)),
        }
    }

    /// For peers of one machine that were given no token.
    pub fn local_token() -> Result<Token> {
        Token::new(LOCAL_TOKEN)
    }
}

/// What a file holds, without white space at its ends: so that a file made by an editor or by `openssl rand -hex` will
/// do. 22023 if that is too short.
pub fn read_token(path: &Path) -> Result<Token> {
    let bytes = std::fs::read(path)
        .map_err(|error| Error::io(format_args!("read the token file \"{}\"", path.display()), &error))?;
    Token::new(bytes.trim_ascii()).map_err(|error| error.with_context(format!("token file \"{}\"", path.display())))
}

impl FromStr for NodeAddress {
    type Err = Error;

    /// 22023 for anything else than the two forms.
    fn from_str(text: &str) -> Result<NodeAddress> {
        let invalid = |detail: &str| {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid address of a memory node: \"{text}\""))
                .with_detail(detail)
                .with_hint("Write HOST:PORT, as in 10.0.0.7:7777, or unix:PATH.")
        };
        let address = text.trim();
        if address.contains('\0') {
            return Err(invalid("An address holds no zero byte."));
        }
        if let Some(path) = address.strip_prefix("unix:") {
            return match path {
                "" => Err(invalid("The path is missing.")),
                path => Ok(NodeAddress::Unix(path.into())),
            };
        }
        let Some((host, port)) = address.rsplit_once(':') else {
            return Err(invalid("The port is missing."));
        };
        if port.parse::<u16>().is_err() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid("A port is a number from 0 to 65535."));
        }
        let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match inside {
            Some(inside) => inside.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)),
        };
        if is_host { Ok(NodeAddress::Tcp(address.to_owned())) } else { Err(invalid("The host is missing or no host.")) }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAddress::Tcp(address) => f.write_str(address),
            NodeAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, is_local) in [
            ("127.0.0.1:7777", true),
            ("[::1]:7777", true),
            ("localhost:0", true),
            ("unix:/run/node", true),
            ("10.0.0.7:7777", false),
            ("memory-1.example.org:65535", false),
            ("0.0.0.0:7777", false),
            ("[::]:7777", false),
        ] {
            let address: NodeAddress = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.is_local()), (text, is_local));
        }
        for text in
            ["", "7777", "host:", "host:x", "host:+1", "host:65536", ":7777", "unix:", "[::1:7", "a b:1", "[x]:1"]
        {
            let error = text.parse::<NodeAddress>().unwrap_err();
            assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE, "{text}");
            assert!(error.detail().is_some() && error.hint().is_some(), "{text}");
        }
    }

    #[test]
    fn a_token_file_may_end_with_a_line() {
        let path = std::env::temp_dir().join(format!("tidepool token {}", std::process::id()));
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        assert!(read_token(&path).is_ok());
        std::fs::write(&path, "0123456789abcde\n").unwrap();
        assert_eq!(read_token(&path).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_token(&path).unwrap_err().code(), SqlState::UNDEFINED_FILE);
    }
}
