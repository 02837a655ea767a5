//! What a client gets. Every function appends one message to `out`.

use tidepool_base::{Error, Part};
use tidepool_planner::{ResultColumn, TransactionStatus};

/// Appends a message of type `kind` whose body `body` writes.
fn message(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    patch_length(out, start);
}

/// Writes at `start` how many bytes there are from `start` to the end.
pub(crate) fn patch_length(out: &mut [u8], start: usize) {
    let length = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn string(out: &mut Vec<u8>, text: &str) {
    // A zero byte would end the string early and shift everything after it.
    out.extend(text.bytes().filter(|byte| *byte != 0));
    out.push(0);
}

pub(crate) fn authentication_ok(out: &mut Vec<u8>) {
    message(out, b'R', |out| out.extend_from_slice(&0u32.to_be_bytes()));
}

pub(crate) fn authentication_sasl(out: &mut Vec<u8>, mechanisms: &[&str]) {
    message(out, b'R', |out| {
        out.extend_from_slice(&10u32.to_be_bytes());
        mechanisms.iter().for_each(|mechanism| string(out, mechanism));
        out.push(0);
    });
}

pub(crate) fn authentication_sasl_continue(out: &mut Vec<u8>, data: &str) {
    message(out, b'R', |out| {
        out.extend_from_slice(&11u32.to_be_bytes());
        out.extend_from_slice(data.as_bytes());
    });
}

pub(crate) fn authentication_sasl_final(out: &mut Vec<u8>, data: &str) {
    message(out, b'R', |out| {
        out.extend_from_slice(&12u32.to_be_bytes());
        out.extend_from_slice(data.as_bytes());
    });
}

pub(crate) fn negotiate_protocol_version(out: &mut Vec<u8>, newest_minor: u32, unrecognised: &[&str]) {
    message(out, b'v', |out| {
        out.extend_from_slice(&(3 << 16 | newest_minor).to_be_bytes());
        out.extend_from_slice(&(unrecognised.len() as u32).to_be_bytes());
        unrecognised.iter().for_each(|option| string(out, option));
    });
}

pub(crate) fn parameter_status(out: &mut Vec<u8>, name: &str, value: &str) {
    message(out, b'S', |out| {
        string(out, name);
        string(out, value);
    });
}

pub(crate) fn backend_key_data(out: &mut Vec<u8>, process_id: i32, secret: &[u8]) {
    message(out, b'K', |out| {
        out.extend_from_slice(&process_id.to_be_bytes());
        out.extend_from_slice(secret);
    });
}

pub(crate) fn ready_for_query(out: &mut Vec<u8>, status: TransactionStatus) {
    let status = match status {
        TransactionStatus::Idle => b'I',
        TransactionStatus::InTransaction => b'T',
        TransactionStatus::Failed => b'E',
    };
    message(out, b'Z', |out| out.push(status));
}

pub(crate) fn error_response(out: &mut Vec<u8>, severity: &str, error: &Error) {
    message(out, b'E', |out| report(out, severity, error));
}

pub(crate) fn notice_response(out: &mut Vec<u8>, severity: &str, error: &Error) {
    message(out, b'N', |out| report(out, severity, error));
}

fn report(out: &mut Vec<u8>, severity: &str, error: &Error) {
    let mut field = |kind: u8, text: &str| {
        out.push(kind);
        string(out, text);
    };
    field(b'S', severity);
    field(b'V', severity);
    field(b'C', error.code().code());
    field(b'M', error.message());
    if let Some(detail) = error.detail() {
        field(b'D', detail);
    }
    if let Some(hint) = error.hint() {
        field(b'H', hint);
    }
    if let Some(position) = error.position() {
        field(b'P', &position.to_string());
    }
    if let Some(context) = error.context() {
        field(b'W', context);
    }
    if let Some(subject) = error.subject() {
        field(b's', &subject.schema);
        field(b't', &subject.table);
        match &subject.part {
            Part::Whole => {}
            Part::Column(name) => field(b'c', name),
            Part::Constraint(name) => field(b'n', name),
        }
    }
    out.push(0);
}

pub(crate) fn row_description(out: &mut Vec<u8>, columns: &[ResultColumn], formats: &[i16]) {
    message(out, b'T', |out| {
        out.extend_from_slice(&(columns.len() as u16).to_be_bytes());
        for (column, format) in columns.iter().zip(formats) {
            string(out, &column.name);
            out.extend_from_slice(&column.table_oid.to_be_bytes());
            out.extend_from_slice(&column.attribute.to_be_bytes());
            out.extend_from_slice(&column.type_oid.to_be_bytes());
            out.extend_from_slice(&type_len(column.type_oid).to_be_bytes());
            out.extend_from_slice(&column.type_modifier.to_be_bytes());
            out.extend_from_slice(&format.to_be_bytes());
        }
    });
}

/// `pg_type.typlen`.
fn type_len(type_oid: u32) -> i16 {
    match type_oid {
        16 | 18 => 1,
        21 => 2,
        23 | 24 | 26 | 28 | 29 | 700 | 1082 | 2202 | 2203 | 2204 | 2205 | 2206 | 3734 | 3769 | 4089 | 4096 => 4,
        20 | 701 | 790 | 1083 | 1114 | 1184 | 3220 => 8,
        1266 => 12,
        1186 | 2950 => 16,
        19 => 64,
        705 | 2275 => -2,
        _ => -1,
    }
}

pub(crate) fn parameter_description(out: &mut Vec<u8>, type_oids: &[u32]) {
    message(out, b't', |out| {
        out.extend_from_slice(&(type_oids.len() as u16).to_be_bytes());
        type_oids.iter().for_each(|oid| out.extend_from_slice(&oid.to_be_bytes()));
    });
}

pub(crate) fn no_data(out: &mut Vec<u8>) {
    message(out, b'n', |_| ());
}

pub(crate) fn parse_complete(out: &mut Vec<u8>) {
    message(out, b'1', |_| ());
}

pub(crate) fn bind_complete(out: &mut Vec<u8>) {
    message(out, b'2', |_| ());
}

pub(crate) fn close_complete(out: &mut Vec<u8>) {
    message(out, b'3', |_| ());
}

pub(crate) fn portal_suspended(out: &mut Vec<u8>) {
    message(out, b's', |_| ());
}

pub(crate) fn empty_query_response(out: &mut Vec<u8>) {
    message(out, b'I', |_| ());
}

pub(crate) fn command_complete(out: &mut Vec<u8>, tag: &str) {
    message(out, b'C', |out| string(out, tag));
}

fn copy_response(out: &mut Vec<u8>, kind: u8, columns: usize, binary: bool) {
    message(out, kind, |out| {
        out.push(u8::from(binary));
        out.extend_from_slice(&(columns as u16).to_be_bytes());
        (0..columns).for_each(|_| out.extend_from_slice(&u16::from(binary).to_be_bytes()));
    });
}

pub(crate) fn copy_in_response(out: &mut Vec<u8>, columns: usize, binary: bool) {
    copy_response(out, b'G', columns, binary);
}

pub(crate) fn copy_out_response(out: &mut Vec<u8>, columns: usize, binary: bool) {
    copy_response(out, b'H', columns, binary);
}

pub(crate) fn copy_data(out: &mut Vec<u8>, data: &[u8]) {
    message(out, b'd', |out| out.extend_from_slice(data));
}

pub(crate) fn copy_done(out: &mut Vec<u8>) {
    message(out, b'c', |_| ());
}
