//! Hosts that send each other messages.

use super::super::{Host, Program, Report, Step, run};
use super::{Plan, Scenario};
use crate::layout::{HostId, Layout};
use crate::ring::{Receiver, Sender};
use std::collections::BTreeSet;

const LAYOUT: Layout = Layout { hosts: 3, workers: 1, tuples: 1, ring_lines: 6, block_lines: 1, blocks: 1 };

const MESSAGES_EACH: u32 = 14;

/// The numbers of a sender's heir begin here.
const HEIRS_FIRST: u32 = 1000;

fn message(number: u32, bytes_max: usize) -> Vec<u8> {
    let length = 4 + (number as usize * 53) % (bytes_max - 3);
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((4..length).map(|at| (number as u8).wrapping_mul(31).wrapping_add(at as u8)));
    bytes
}

fn number_of(host: &Host<'_>, bytes: &[u8], bytes_max: usize) -> u32 {
    let number = bytes.first_chunk().map_or(u32::MAX, |four| u32::from_le_bytes(*four));
    host.hold(number < 2 * HEIRS_FIRST && message(number, bytes_max) == bytes, || {
        format!("received {bytes:02x?}, which nobody has sent")
    });
    number
}

/// Sends numbered messages until all are sent, or `gives_up`.
fn send(host: &Host<'_>, from: HostId, to: HostId, first: u32, gives_up: impl Fn() -> bool) -> Step<()> {
    let mut sender = Sender::attach(host, LAYOUT, from, to)?;
    for number in first..first + MESSAGES_EACH {
        let message = message(number, sender.message_bytes_max());
        while !sender.send(host, &message)? {
            if gives_up() {
                return Ok(());
            }
            host.pause()?;
        }
    }
    Ok(())
}

/// Receives one message after the other, in order, until `is_all` of those that came.
fn receive(host: &Host<'_>, from: HostId, to: HostId, is_all: impl Fn(&[u32]) -> bool) -> Step<Vec<u32>> {
    let bytes_max = Sender::attach(host, LAYOUT, from, to)?.message_bytes_max();
    let mut receiver = Receiver::attach(host, LAYOUT, from, to)?;
    let mut numbers: Vec<u32> = Vec::new();
    loop {
        let was_all = is_all(&numbers);
        match receiver.receive(host)? {
            Some(bytes) => {
                let number = number_of(host, bytes, bytes_max);
                let is_next = numbers.last().is_none_or(|last| number == last + 1 || number == HEIRS_FIRST);
                host.hold(is_next, || format!("received message {number} after {numbers:?}"));
                numbers.push(number);
            }
            None if was_all => return Ok(numbers),
            None => host.pause()?,
        }
    }
}

/// All hosts send to all, by turns.
fn messages(plan: Plan) -> Report {
    let program = |me: u8| -> Program {
        Box::new(move |host| {
            let me = HostId(me);
            let (next, before) = (HostId((me.0 + 1) % LAYOUT.hosts), HostId((me.0 + 2) % LAYOUT.hosts));
            let mut sender = Sender::attach(host, LAYOUT, me, next)?;
            let mut receiver = Receiver::attach(host, LAYOUT, before, me)?;
            let bytes_max = sender.message_bytes_max();
            let (mut sent, mut received) = (0, 0);
            loop {
                if sent < MESSAGES_EACH && sender.send(host, &message(sent, bytes_max))? {
                    sent += 1;
                }
                // Before the ring is found empty: all that it sent is there.
                let is_over = host.is_over(before);
                let is_dead = host.has_died(before);
                match receiver.receive(host)? {
                    Some(bytes) => {
                        let number = number_of(host, bytes, bytes_max);
                        host.hold(number == received, || format!("received message {number} instead of {received}"));
                        received += 1;
                    }
                    None if is_over => {
                        host.hold(is_dead || received == MESSAGES_EACH, || format!("only {received} came"));
                        received = MESSAGES_EACH;
                    }
                    None => host.pause()?,
                }
                let is_sent = sent == MESSAGES_EACH || host.has_died(next);
                if is_sent && received == MESSAGES_EACH {
                    return Ok(());
                }
            }
        })
    };
    run(plan, LAYOUT, (0..LAYOUT.hosts).map(program).collect())
}

pub const MESSAGES: Scenario = Scenario {
    name: "messages",
    run: messages,
    mortals: &[HostId(0), HostId(1), HostId(2)],
    deaths: 2,
    accesses: 250,
    runs: 1,
};

/// Host 0 sends to host 1. When one of them dies, host 2 goes on in its place.
fn heirs(plan: Plan) -> Report {
    const SENDER: HostId = HostId(0);
    const RECEIVER: HostId = HostId(1);
    let last = MESSAGES_EACH - 1;
    let sender: Program = Box::new(move |host| send(host, SENDER, RECEIVER, 0, || false));
    let receiver: Program = Box::new(move |host| {
        let numbers = receive(host, SENDER, RECEIVER, |numbers| {
            let last = if host.has_died(SENDER) { HEIRS_FIRST + last } else { last };
            numbers.last() == Some(&last)
        })?;
        let unlike: BTreeSet<_> = numbers.iter().collect();
        host.hold(numbers.first().is_none_or(|first| [0, HEIRS_FIRST].contains(first)), || "the first are lost".into());
        host.hold(unlike.len() == numbers.len(), || format!("a message came twice: {numbers:?}"));
        Ok(())
    });
    let heir: Program = Box::new(move |host| {
        while !host.has_died(SENDER) && !host.has_died(RECEIVER) {
            if host.is_over(SENDER) && host.is_over(RECEIVER) {
                return Ok(());
            }
            host.pause()?;
        }
        if host.has_died(SENDER) {
            host.outlives(SENDER)?;
            return send(host, SENDER, RECEIVER, HEIRS_FIRST, || host.is_over(RECEIVER));
        }
        // What had come to the dead host may come again, and what it took along does not: but nothing is left out in
        // between.
        let numbers = receive(host, SENDER, RECEIVER, |_| host.is_over(SENDER))?;
        host.hold(numbers.last().is_none_or(|number| *number == last), || format!("the last are lost: {numbers:?}"));
        Ok(())
    });
    run(plan, LAYOUT, vec![sender, receiver, heir])
}

pub const HEIRS: Scenario = Scenario {
    name: "heirs of a ring",
    run: heirs,
    mortals: &[HostId(0), HostId(1)],
    deaths: 1,
    accesses: 250,
    runs: 1,
};
