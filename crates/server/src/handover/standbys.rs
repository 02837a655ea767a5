//! What a primary tells each of its standbys, and hears from it.

use super::{CANCEL, HAS, LOOK_INTERVAL, Message, Own, PASS_WITHIN, Taken, WANTED, YOURS, not_taken};
use parking_lot::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tidepool_base::Result;
use tidepool_pool::control::{Arrival, ControlConnection};
use tokio::sync::mpsc::UnboundedSender;

/// Until the standby is gone, does not keep up, or nothing is told any more.
pub(super) fn serve_standby(
    connection: &ControlConnection,
    messages: &Receiver<Message>,
    own: &Mutex<Own>,
    taken: &UnboundedSender<Taken>,
) {
    tracing::info!("{} has the sockets of this host's clients", connection.peer());
    let mut looked = Instant::now();
    loop {
        match messages.recv_timeout(LOOK_INTERVAL) {
            Ok(message) => {
                if message.send(connection).is_err() {
                    return;
                }
                if let Message::Ask { pass, answer } = message {
                    match wait_for_answer(connection, pass, own, taken) {
                        Ok(held) => _ = answer.try_send(held),
                        Err(_) => return,
                    }
                }
                if looked.elapsed() < LOOK_INTERVAL {
                    continue;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        looked = Instant::now();
        match connection.receive(Duration::ZERO) {
            Ok(Arrival::Nothing) => {}
            Ok(Arrival::Message { bytes, .. }) => {
                if answer(connection, &bytes, own, taken).is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

/// How many sessions the standby has of a pass. What else it says meanwhile is done.
fn wait_for_answer(
    connection: &ControlConnection,
    pass: u64,
    own: &Mutex<Own>,
    taken: &UnboundedSender<Taken>,
) -> Result<u64> {
    let end = Instant::now() + PASS_WITHIN;
    while Instant::now() < end {
        match connection.receive(LOOK_INTERVAL)? {
            Arrival::Message { bytes, .. } => match bytes.split_first() {
                Some((&HAS, rest)) => {
                    if let Some((answered, held)) = rest.split_first_chunk::<8>()
                        && let Ok(held) = held.try_into()
                        && u64::from_le_bytes(*answered) == pass
                    {
                        return Ok(u64::from_le_bytes(held));
                    }
                }
                _ => answer(connection, &bytes, own, taken)?,
            },
            Arrival::Nothing => {}
            Arrival::End => break,
        }
    }
    Err(not_taken(connection.peer()))
}

/// Does what a standby asks for. An address that was inherited goes back to the host that it belongs to.
fn answer(
    connection: &ControlConnection,
    message: &[u8],
    own: &Mutex<Own>,
    taken: &UnboundedSender<Taken>,
) -> Result<()> {
    let address = match message {
        [WANTED, address @ ..] => address,
        [CANCEL, rest @ ..] => {
            if let Some((process_id, secret)) = rest.split_first_chunk::<4>() {
                let (process_id, secret) = (i32::from_le_bytes(*process_id), secret.to_vec());
                let _ = taken.send(Taken::Cancel { process_id, secret });
            }
            return Ok(());
        }
        // Of a later release.
        _ => return Ok(()),
    };
    let address = String::from_utf8_lossy(address).into_owned();
    let mut own = own.lock();
    if own.is_inherited(&address) {
        // Whoever has it next hears of it before the others let go of theirs.
        connection.send(&[&[YOURS], address.as_bytes()].concat(), &[])?;
        tracing::info!("clients that connect to {address} are served by {} again", connection.peer());
        own.let_go(&address);
    }
    Ok(())
}
