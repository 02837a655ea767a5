//! The protocol: what a client sends, from its first byte on.

use crate::world::{ROLE, World};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Answers are read up to here; what comes after is not looked at.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// How long a client that sent all waits for the next piece of an answer.
const PAUSE: Duration = Duration::from_millis(50);

fn startup(parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = 196_608_i32.to_be_bytes().to_vec();
    for (name, value) in parameters {
        for text in [name, value] {
            body.extend_from_slice(text.as_bytes());
            body.push(0);
        }
    }
    body.push(0);
    let mut bytes = (body.len() as i32 + 4).to_be_bytes().to_vec();
    bytes.extend(body);
    bytes
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend((body.len() as i32 + 4).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', &[sql.as_bytes(), b"\0"].concat())
}

fn parse(name: &str, sql: &str, oids: &[i32]) -> Vec<u8> {
    let mut body = [name.as_bytes(), b"\0", sql.as_bytes(), b"\0"].concat();
    body.extend((oids.len() as i16).to_be_bytes());
    oids.iter().for_each(|oid| body.extend(oid.to_be_bytes()));
    message(b'P', &body)
}

/// Parameters and results in one format each: 0 text, 1 binary.
fn bind(portal: &str, name: &str, format: i16, values: &[Option<&[u8]>], results: i16) -> Vec<u8> {
    let mut body = [portal.as_bytes(), b"\0", name.as_bytes(), b"\0"].concat();
    body.extend(1_i16.to_be_bytes());
    body.extend(format.to_be_bytes());
    body.extend((values.len() as i16).to_be_bytes());
    for value in values {
        match value {
            None => body.extend((-1_i32).to_be_bytes()),
            Some(bytes) => {
                body.extend((bytes.len() as i32).to_be_bytes());
                body.extend_from_slice(bytes);
            }
        }
    }
    body.extend(1_i16.to_be_bytes());
    body.extend(results.to_be_bytes());
    message(b'B', &body)
}

fn describe(kind: u8, name: &str) -> Vec<u8> {
    message(b'D', &[&[kind], name.as_bytes(), b"\0"].concat())
}

fn close(kind: u8, name: &str) -> Vec<u8> {
    message(b'C', &[&[kind], name.as_bytes(), b"\0"].concat())
}

fn execute(portal: &str, rows_max: i32) -> Vec<u8> {
    message(b'E', &[portal.as_bytes(), b"\0", &rows_max.to_be_bytes()].concat())
}

fn sync() -> Vec<u8> {
    message(b'S', b"")
}

/// Conversations that end well.
pub fn seeds() -> Vec<Vec<u8>> {
    let login = || startup(&[("user", ROLE), ("database", "tidepool"), ("options", "-c statement_timeout=2000")]);
    let end = || message(b'X', b"");
    let talk = |messages: &[Vec<u8>]| [&[login()], messages, &[end()]].concat().concat();
    vec![
        talk(&[query("SELECT 1; SELECT id, name FROM item ORDER BY id LIMIT 3")]),
        talk(&[
            parse("s", "SELECT name, price, made, flag FROM item WHERE id = $1", &[23]),
            bind("p", "s", 1, &[Some(&7_i32.to_be_bytes())], 1),
            describe(b'P', "p"),
            execute("p", 0),
            sync(),
        ]),
        talk(&[
            parse("", "SELECT * FROM part WHERE item = $1 AND weight < $2 ORDER BY number", &[]),
            describe(b'S', ""),
            bind("", "", 0, &[Some(b"3"), None], 0),
            execute("", 1),
            execute("", 1),
            sync(),
            close(b'S', ""),
            message(b'H', b""),
            sync(),
        ]),
        talk(&[
            query("BEGIN"),
            parse("i", "INSERT INTO part VALUES ($1, $2, $3)", &[23, 23, 701]),
            bind(
                "",
                "i",
                1,
                &[Some(&9_i32.to_be_bytes()), Some(&9_i32.to_be_bytes()), Some(&1.5_f64.to_be_bytes())],
                1,
            ),
            execute("", 0),
            sync(),
            query("ROLLBACK"),
        ]),
        talk(&[
            query("COPY part FROM STDIN"),
            message(b'd', b"60\t1\t0.5\n60\t2\t"),
            message(b'd', b"\\N\n"),
            message(b'c', b""),
        ]),
        talk(&[query("COPY item FROM STDIN WITH (FORMAT csv)"), message(b'f', b"no more\0")]),
        talk(&[query("COPY (SELECT * FROM part LIMIT 3) TO STDOUT WITH (FORMAT binary)")]),
        talk(&[query("SELECT 1/0"), sync(), query("")]),
        // A request to cancel, and one for encryption before the conversation.
        [16_i32.to_be_bytes(), 80_877_102_i32.to_be_bytes(), 1_i32.to_be_bytes(), 2_i32.to_be_bytes()].concat(),
        [[8_i32.to_be_bytes(), 80_877_103_i32.to_be_bytes()].concat(), talk(&[query("SELECT 2")])].concat(),
        [[8_i32.to_be_bytes(), 80_877_104_i32.to_be_bytes()].concat(), talk(&[query("SELECT 3")])].concat(),
        [startup(&[("user", "nobody"), ("database", "other")]), end()].concat(),
    ]
}

/// Sends `bytes` and reads what is answered until the server has closed its end. A client that `leaves` goes after a moment
/// without an answer: a server waits for the rest of a message for ever.
async fn converse(world: &World, bytes: &[u8], leaves: bool) -> Vec<u8> {
    let (mut from, mut to) = tokio::io::split(world.service.connect());
    // Answers are read meanwhile, and the server may end the conversation before all was sent.
    let sent = to.write_all(bytes);
    tokio::pin!(sent);
    let mut is_sent = false;
    let mut answer = Vec::new();
    let mut piece = vec![0; 16 << 10];
    loop {
        tokio::select! {
            _ = &mut sent, if !is_sent => is_sent = true,
            read = from.read(&mut piece) => match read {
                Ok(count) if count > 0 && answer.len() <= ANSWER_BYTES_MAX => answer.extend_from_slice(&piece[..count]),
                _ => break,
            },
            () = tokio::time::sleep(PAUSE), if leaves && is_sent => break,
        }
    }
    answer
}

/// Whatever a client sends, its connection ends when it leaves, no answer says that the server is at fault, and others are served.
pub fn run(input: &[u8]) {
    let world = World::get();
    world.runtime.block_on(async {
        let answer = converse(world, input, true).await;
        assert!(!has(&answer, b"CXX000\0"), "an internal error: {}", String::from_utf8_lossy(&answer));
        let ask = [startup(&[("user", ROLE), ("database", "tidepool")]), query("SELECT 4711"), message(b'X', b"")];
        let answer = converse(world, &ask.concat(), false).await;
        assert!(has(&answer, b"4711"), "the next client was not served: {}", String::from_utf8_lossy(&answer));
    });
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
