//! `SET`, `RESET`, `SHOW` and `DISCARD`.

use super::Command;
use super::cursor::Cursor;
use super::parts::{names, set_value};
use super::transaction::transaction_modes;
use arrow::array::AsArray;
use arrow::datatypes::IntervalMonthDayNanoType;
use datafusion::sql::sqlparser::tokenizer::Token;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_database::text::{TextReader, TextSettings, Zone};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetValue {
    Default,
    /// A list where PostgreSQL takes one; otherwise one element.
    Values(Vec<String>),
}

pub fn setting_name(cursor: &mut Cursor<'_>) -> Result<String> {
    let mut name = cursor.ident()?;
    while cursor.token(&Token::Period) {
        name.push('.');
        name.push_str(&cursor.ident()?);
    }
    Ok(name)
}

pub fn setting_name_or_all(cursor: &mut Cursor<'_>) -> Result<Option<String>> {
    if cursor.keyword("all") {
        Ok(None)
    } else if cursor.keywords(&["time", "zone"]) {
        Ok(Some("timezone".to_owned()))
    } else if cursor.keywords(&["transaction", "isolation", "level"]) {
        Ok(Some("transaction_isolation".to_owned()))
    } else if cursor.keywords(&["session", "authorization"]) {
        Ok(Some("session_authorization".to_owned()))
    } else {
        setting_name(cursor).map(Some)
    }
}

pub fn set(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    if cursor.keywords(&["session", "characteristics", "as", "transaction"]) {
        return Ok(Command::SetSessionTransaction { modes: transaction_modes(cursor)? });
    }
    if cursor.keyword("transaction") {
        return Ok(Command::SetTransaction { modes: transaction_modes(cursor)? });
    }
    if cursor.is_keyword("constraints") {
        cursor.advance();
        let names = if cursor.keyword("all") { None } else { Some(names(cursor)?) };
        let Some(mode) = cursor.one_of(&["deferred", "immediate"]) else { return Err(cursor.error()) };
        return Ok(Command::SetConstraints { names, deferred: mode == "deferred" });
    }
    let local = cursor.keyword("local");
    if !local {
        cursor.keyword("session");
    }
    if cursor.keywords(&["time", "zone"]) {
        let name = "timezone".to_owned();
        if cursor.keyword("local") || cursor.keyword("default") {
            return Ok(Command::Set { name, value: SetValue::Default, local });
        }
        // `SET TIME ZONE INTERVAL '+02:00' HOUR TO MINUTE`.
        let interval = cursor.keyword("interval");
        let mut value = set_value(cursor)?;
        if interval {
            // A number alone is of the last field.
            let number = value.trim().parse::<i32>().ok();
            let unit = match (cursor.keywords(&["hour", "to", "minute"]), cursor.keyword("hour")) {
                (true, _) => "minutes",
                (_, true) => "hours",
                _ => "seconds",
            };
            value = zone_of_interval(&number.map_or(value, |number| format!("{number} {unit}")))?;
        }
        return Ok(Command::Set { name, value: SetValue::Values(vec![value]), local });
    }
    if cursor.keyword("names") {
        let value = if cursor.at_end() || cursor.keyword("default") {
            SetValue::Default
        } else {
            SetValue::Values(vec![set_value(cursor)?])
        };
        return Ok(Command::Set { name: "client_encoding".to_owned(), value, local });
    }
    let name = setting_name(cursor)?;
    if !cursor.keyword("to") {
        cursor.expect_token(&Token::Eq)?;
    }
    if cursor.keyword("default") {
        return Ok(Command::Set { name, value: SetValue::Default, local });
    }
    let mut values = vec![set_value(cursor)?];
    while cursor.token(&Token::Comma) {
        values.push(set_value(cursor)?);
    }
    Ok(Command::Set { name, value: SetValue::Values(values), local })
}

/// The zone that is so far east of UTC.
fn zone_of_interval(text: &str) -> Result<String> {
    let mut reader = TextReader::new(SqlType::Interval, &TextSettings::default());
    reader.append(text)?;
    let interval = reader.finish().as_primitive::<IntervalMonthDayNanoType>().value(0);
    if interval.months != 0 || interval.days != 0 {
        let message = format!("invalid value for parameter \"TimeZone\": \"{text}\"");
        let detail = match interval.months {
            0 => "Cannot specify days in time zone interval.",
            _ => "Cannot specify months in time zone interval.",
        };
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, message).with_detail(detail));
    }
    Ok(Zone::posix_name(i32::try_from(interval.nanoseconds / 1_000_000_000).unwrap_or(i32::MAX)))
}

pub fn discard(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    Ok(match cursor.one_of(&["all", "plans", "sequences", "temp", "temporary"]) {
        Some("all") => Command::DiscardAll,
        Some("plans") => Command::DoNothing { tag: "DISCARD PLANS", notice: None },
        Some("sequences") => Command::DiscardSequences,
        Some(_) => Command::DiscardTemporary,
        None => return Err(cursor.error()),
    })
}
