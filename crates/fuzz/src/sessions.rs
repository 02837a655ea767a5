//! Sessions that another process passes on.

use tidepool_planner::{PortablePrepared, PortableSession, PortableStatement, PortableTls};

/// What the checksum is over begins here.
const HEADER_BYTES: usize = 14;

pub fn seeds() -> Vec<Vec<u8>> {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let statement = PortableStatement { name: "s".to_owned(), text: "SELECT $1".to_owned(), types: vec![23, 25] };
    let prepared = PortablePrepared { statement: statement.clone(), parameters: vec![23, 25], columns: Some(vec![23]) };
    let full = PortableSession {
        user: "tidepool".to_owned(),
        role: 10,
        id: 7,
        start_us: 1,
        values: vec![pair("search_path", "a, b"), pair("TimeZone", "UTC")],
        defaults: vec![pair("lock_timeout", "5s")],
        custom: vec![pair("app.user", "me")],
        told: vec![pair("in_hot_standby", "off")],
        prepared: vec![statement],
        latest_sequence: Some(5),
        process_id: 7,
        secret: vec![1; 32],
        input: b"Q\0\0\0\x20SELECT".to_vec(),
        statements: vec![prepared],
        ..PortableSession::default()
    };
    let unknown = [&full.to_bytes()[..], &0x8000_u16.to_le_bytes(), &2_u32.to_le_bytes(), b"xx"].concat();
    let tls = Some(PortableTls { suite: 0x1301, records: vec![23, 3, 3], ..PortableTls::default() });
    let with_tls = PortableSession { tls, ..full.clone() };
    vec![full.to_bytes(), with_tls.to_bytes(), PortableSession::default().to_bytes(), summed(&unknown)]
}

/// With the checksum that fits, so that what is behind it is read.
fn summed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= HEADER_BYTES {
        let mixed = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let sum = bytes[HEADER_BYTES..].iter().fold(0xcbf2_9ce4_8422_2325, mixed);
        bytes[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

/// What is read is what was written, and all else is an error.
pub fn run(input: &[u8]) {
    let _ = PortableSession::from_bytes(input);
    if let Ok(session) = PortableSession::from_bytes(&summed(input)) {
        let again = PortableSession::from_bytes(&session.to_bytes());
        assert_eq!(again.as_ref(), Ok(&session), "a session is another one once it is written");
    }
}
